package openai

import (
	"strconv"
	"strings"

	"tollgate/proxy/media"
)

// Tokens of an image in the input, by the rule that OpenAI publishes for GPT-4o:
// at low detail 85; else it is scaled down to fit 2048 × 2048, then until its
// shorter side is 768, and each tile of 512 × 512 that it touches is 170 beside the
// 85. Models with another rule are off; their upstream's usage says the truth.
const (
	imageBase    = 85
	imageTile    = 170
	tileSide     = 512
	longestSide  = 2048
	shortestSide = 768
	// unknownImage is for images that are not in the request: the most that the
	// rule gives, 2 × 4 tiles.
	unknownImage = imageBase + 8*imageTile
)

func imageTokens(address, detail string) int64 {
	if detail == "low" {
		return imageBase
	}
	width, height, ok := imageSize(address)
	if !ok {
		return unknownImage
	}
	return tileTokens(width, height)
}

func tileTokens(width, height int64) int64 {
	if long := max(width, height); long > longestSide {
		width, height = ratio(width, longestSide, long), ratio(height, longestSide, long)
	}
	if short := min(width, height); short > shortestSide {
		width, height = ratio(width, shortestSide, short), ratio(height, shortestSide, short)
	}
	tiles := ((width + tileSide - 1) / tileSide) * ((height + tileSide - 1) / tileSide)
	return imageBase + max(tiles, 1)*imageTile
}

// ratio is n × to ÷ from, at least 1.
func ratio(n, to, from int64) int64 { return max(n*to/from, 1) }

// imageSize is the size of an image that the request holds as a data URL.
func imageSize(address string) (width, height int64, ok bool) {
	kind, data, found := strings.Cut(address, ";base64,")
	if !found || !strings.HasPrefix(kind, "data:image/") {
		return 0, 0, false
	}
	return media.ImageSize(data)
}

// generatedTokens is what one generated image is in output tokens, by the table
// that OpenAI publishes for its gpt-image models. It sizes the hold only: models
// that are billed by the image say no tokens. Sizes that the table lacks are
// scaled by their pixels, the unknown take the largest.
func generatedTokens(size, quality string) int64 {
	var square, portrait, landscape int64
	switch quality {
	case "low":
		square, portrait, landscape = 272, 408, 400
	case "medium":
		square, portrait, landscape = 1056, 1584, 1568
	default: // high, auto, and what the table does not know
		square, portrait, landscape = 4160, 6240, 6208
	}
	switch size {
	case "1024x1024", "512x512", "256x256":
		return square
	case "1536x1024":
		return landscape
	}
	w, h, found := strings.Cut(size, "x")
	width, errW := strconv.ParseInt(w, 10, 32)
	height, errH := strconv.ParseInt(h, 10, 32)
	if !found || errW != nil || errH != nil || width <= 0 || height <= 0 || width > 1<<14 || height > 1<<14 {
		return portrait
	}
	return max(square*width*height/(1024*1024), portrait)
}
