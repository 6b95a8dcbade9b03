// Package media reads what the files in a request say of their size, which is
// what models count them by. It looks at their first bytes only and decodes
// nothing else.
package media

import (
	"encoding/base64"
	"encoding/binary"
	"image"
	_ "image/gif"  // sizes of GIF images
	_ "image/jpeg" // sizes of JPEG images
	_ "image/png"  // sizes of PNG images
	"io"
	"strings"
)

// headerBytes is how much of an image is looked at for its size. JPEG files may
// have a preview before it.
const headerBytes = 64 << 10

// ImageSize is the size in pixels of a PNG, JPEG, GIF or WebP image in base64;
// false where it cannot be read.
func ImageSize(data string) (width, height int64, ok bool) {
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
