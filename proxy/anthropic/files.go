package anthropic

import (
	"encoding/base64"
	"encoding/binary"
	"image"
	_ "image/gif"  // sizes of GIF images
	_ "image/jpeg" // sizes of JPEG images
	_ "image/png"  // sizes of PNG images
	"io"
	"strings"

	"github.com/tidwall/gjson"
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

// headerBytes is how much of an image is looked at for its size. JPEG files may
// have a preview before it.
const headerBytes = 64 << 10

// imageTokens is what the image of a source costs.
func imageTokens(source gjson.Result) int64 {
	data := source.Get("data").Str
	if data == "" {
		return maxImageTokens
	}
	width, height, ok := imageSize(data)
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

// imageSize reads the beginning of an image in base64.
func imageSize(data string) (width, height int64, ok bool) {
	if n := headerBytes / 3 * 4; len(data) > n {
		data = data[:n]
	}
	if config, _, err := image.DecodeConfig(base64.NewDecoder(base64.StdEncoding, strings.NewReader(data))); err == nil {
		return int64(config.Width), int64(config.Height), config.Width > 0 && config.Height > 0
	}
	var head [30]byte
	if _, err := io.ReadFull(base64.NewDecoder(base64.StdEncoding, strings.NewReader(data)), head[:]); err != nil {
		return 0, 0, false
	}
	return webpSize(&head)
}

// webpSize reads a WebP file's header (RFC 9649, section 2): of the extended,
// the lossless and the lossy form.
func webpSize(head *[30]byte) (width, height int64, ok bool) {
	if string(head[:4]) != "RIFF" || string(head[8:12]) != "WEBP" {
		return 0, 0, false
	}
	switch string(head[12:16]) {
	case "VP8X":
		width, height = 1+uint24(head[24:27]), 1+uint24(head[27:30])
	case "VP8L":
		bits := binary.LittleEndian.Uint32(head[21:25])
		width, height = 1+int64(bits&0x3fff), 1+int64(bits>>14&0x3fff)
	case "VP8 ":
		width = int64(binary.LittleEndian.Uint16(head[26:28]) & 0x3fff)
		height = int64(binary.LittleEndian.Uint16(head[28:30]) & 0x3fff)
	}
	return width, height, width > 0 && height > 0
}

func uint24(b []byte) int64 { return int64(b[0]) | int64(b[1])<<8 | int64(b[2])<<16 }

// documentTokens estimates a file from its length in base64, or without one.
func documentTokens(base64 int) int64 {
	if base64 == 0 {
		return unknownPages * pageTokens
	}
	return (int64(base64)*3/4/pageBytes + 1) * pageTokens
}
