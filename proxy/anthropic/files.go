package anthropic

import (
	"github.com/tidwall/gjson"

	"tollgate/proxy/media"
)

// Images (docs: vision, "calculate image costs"): an image costs width × height
// / 750 tokens, after it was scaled down to a long edge of 1568 pixels and to
// about 1.15 megapixels, which comes to about 1,600 tokens at most. What has no
// size that we know (a URL, a file id) is taken for the largest.
const (
	pixelsPerToken = 750
	longEdge       = 1568
	maxImageTokens = 1600
)

// Documents (docs: PDF support, "estimate your costs"): a page costs 1,500 to
// 3,000 tokens of text, and is seen as an image too. How many pages a file has is
// not known without reading it: a page for each 64 KiB is assumed, and ten pages
// where there is only an address.
const (
	pageTokens   = 3000 + maxImageTokens
	pageBytes    = 64 << 10
	unknownPages = 10
)

// imageTokens is what the image of a source costs.
func imageTokens(source gjson.Result) int64 {
	data := source.Get("data").Str
	if data == "" {
		return maxImageTokens
	}
	width, height, ok := media.ImageSize(data)
	if !ok {
		return maxImageTokens
	}
	return sizeTokens(width, height)
}

func sizeTokens(width, height int64) int64 {
	if edge := max(width, height); edge > longEdge {
		width, height = max(width*longEdge/edge, 1), max(height*longEdge/edge, 1)
	}
	return min((width*height+pixelsPerToken-1)/pixelsPerToken, maxImageTokens)
}

// documentTokens estimates a file from its length in base64, or without one.
func documentTokens(base64 int) int64 {
	if base64 == 0 {
		return unknownPages * pageTokens
	}
	return (int64(base64)*3/4/pageBytes + 1) * pageTokens
}
