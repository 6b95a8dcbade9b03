package media_test

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"image"
	"image/gif"
	"image/jpeg"
	"image/png"
	"io"
	"strings"
	"testing"

	"tollgate/proxy/media"
)

func picture(t testing.TB, encode func(io.Writer, image.Image) error) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := encode(&b, image.NewGray(image.Rect(0, 0, 321, 123))); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func jpegs(w io.Writer, m image.Image) error { return jpeg.Encode(w, m, nil) }
func gifs(w io.Writer, m image.Image) error  { return gif.Encode(w, m, nil) }

func webp(form string, at int, size ...byte) []byte {
	head := make([]byte, 40)
	copy(head, "RIFF\x00\x00\x00\x00WEBP"+form)
	copy(head[at:], size)
	return head
}

func TestImageSize(t *testing.T) {
	// A JPEG whose size stands behind a preview of 40 KiB, as cameras write it.
	plain := picture(t, jpegs)
	camera := append(bytes.Clone(plain[:2]), 0xff, 0xe1, 0xa0, 0x02)
	camera = append(append(camera, make([]byte, 0xa000)...), plain[2:]...)
	for name, tt := range map[string]struct {
		file          []byte
		width, height int64
	}{
		"PNG":              {picture(t, png.Encode), 321, 123},
		"JPEG":             {plain, 321, 123},
		"JPEG of a camera": {camera, 321, 123},
		"GIF":              {picture(t, gifs), 321, 123},
		"WebP, extended":   {webp("VP8X", 24, 0x40, 1, 0, 122, 0, 0), 321, 123},
		"WebP, lossless":   {webp("VP8L", 21, binary.LittleEndian.AppendUint32(nil, 320|122<<14)...), 321, 123},
		"WebP, lossy":      {webp("VP8 ", 26, 0x41, 1, 123, 0), 321, 123},
		"WebP, unknown":    {webp("VP9 ", 26, 0x41, 1, 123, 0), 0, 0},
		"RIFF, no WebP":    {[]byte("RIFF\x00\x00\x00\x00WAVEfmt " + strings.Repeat("\x01", 40)), 0, 0},
		"text":             {[]byte("hello"), 0, 0},
		"nothing":          {nil, 0, 0},
	} {
		width, height, ok := media.ImageSize(base64.StdEncoding.EncodeToString(tt.file))
		if ok != (tt.width > 0) || width != tt.width || height != tt.height {
			t.Errorf("%s: %d × %d %v", name, width, height, ok)
		}
	}
	if _, _, ok := media.ImageSize("%%%"); ok {
		t.Error("what is no base64 has a size")
	}
}

func FuzzImageSize(f *testing.F) {
	for _, seed := range [][]byte{picture(f, png.Encode), picture(f, jpegs), picture(f, gifs), webp("VP8X", 24, 1, 1, 1), nil} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		width, height, ok := media.ImageSize(base64.StdEncoding.EncodeToString(file))
		if ok != (width > 0 && height > 0) {
			t.Errorf("%d × %d %v", width, height, ok)
		}
	})
}
