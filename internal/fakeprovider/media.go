package fakeprovider

import (
	"bytes"
	"compress/zlib"
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"
	"math"
)

// picture is a PNG of one pixel, in a colour of its own.
func picture(r *random) []byte {
	var pixels bytes.Buffer
	z := zlib.NewWriter(&pixels)
	_, _ = z.Write([]byte{0, byte(r.below(256)), byte(r.below(256)), byte(r.below(256))}) // to memory
	_ = z.Close()
	b := []byte("\x89PNG\r\n\x1a\n")
	b = appendPNGChunk(b, "IHDR", []byte{0, 0, 0, 1, 0, 0, 0, 1, 8, 2, 0, 0, 0})
	b = appendPNGChunk(b, "IDAT", pixels.Bytes())
	return appendPNGChunk(b, "IEND", nil)
}

func appendPNGChunk(b []byte, kind string, data []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(data)))
	from := len(b)
	b = append(append(b, kind...), data...)
	return binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b[from:]))
}

// Speech is 8,000 samples a second of 16 bits, and each token of text is spoken
// for 60 ms.
const (
	sampleRate        = 8000
	speechMillisToken = 60
)

// samples is a quiet tone of so many milliseconds.
func samples(millis int64) []byte {
	n := millis * sampleRate / 1000
	b := make([]byte, 0, 2*n)
	for i := range n {
		b = binary.LittleEndian.AppendUint16(b, uint16(int16(800*math.Sin(float64(i)*2*math.Pi*440/sampleRate))))
	}
	return b
}

// wav puts a header before samples.
func wav(data []byte) []byte {
	b := append([]byte("RIFF"), make([]byte, 0, 44+len(data))...)
	b = binary.LittleEndian.AppendUint32(b, uint32(36+len(data)))
	b = append(b, "WAVEfmt "...)
	b = binary.LittleEndian.AppendUint32(b, 16)
	b = binary.LittleEndian.AppendUint16(b, 1) // PCM
	b = binary.LittleEndian.AppendUint16(b, 1) // one channel
	b = binary.LittleEndian.AppendUint32(b, sampleRate)
	b = binary.LittleEndian.AppendUint32(b, 2*sampleRate)
	b = binary.LittleEndian.AppendUint16(b, 2)
	b = binary.LittleEndian.AppendUint16(b, 16)
	b = append(b, "data"...)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(data)))
	return append(b, data...)
}

// mp3 is silence: frames of MPEG-1 layer III at 128 kbit/s and 44.1 kHz, 26 ms
// and 417 bytes each.
func mp3(millis int64) []byte {
	frame := make([]byte, 417)
	copy(frame, "\xff\xfb\x90\x64")
	return bytes.Repeat(frame, int(1+millis/26))
}

// soundMillis is how long a sound file is: exactly where it is a WAV, else as if
// it had 32 kbit/s.
func soundMillis(file []byte) int64 {
	if len(file) >= 44 && string(file[:4]) == "RIFF" && string(file[8:12]) == "WAVE" {
		rate := int64(binary.LittleEndian.Uint32(file[28:32]))
		for at := int64(12); at+8 <= int64(len(file)) && rate > 0; {
			size := int64(binary.LittleEndian.Uint32(file[at+4 : at+8]))
			if string(file[at:at+4]) == "data" {
				return min(size, int64(len(file))-at-8) * 1000 / rate
			}
			at += 8 + size + size&1
		}
	}
	return int64(len(file)) / 4
}

// audioTokens is what sound of that length costs; begun seconds count.
func audioTokens(millis int64) int64 { return max(1, (millis+999)/1000) * audioTokensASecond }

// vector is a unit vector that follows from r.
func vector(r *random, dimensions int64) []float32 {
	v := make([]float32, dimensions)
	sum := 0.0
	for i := range v {
		f := float64(int64(r.next())) / (1 << 63)
		v[i] = float32(f)
		sum += f * f
	}
	scale := float32(1 / math.Sqrt(max(sum, 1e-12)))
	for i := range v {
		v[i] *= scale
	}
	return v
}

// appendVector appends a vector as OpenAI gives it: numbers, or the
// little-endian bytes of its 32-bit floats in base64.
func appendVector(b []byte, v []float32, inBase64 bool) []byte {
	if inBase64 {
		raw := make([]byte, 0, 4*len(v))
		for _, f := range v {
			raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(f))
		}
		b = append(b, '"')
		b = base64.StdEncoding.AppendEncode(b, raw)
		return append(b, '"')
	}
	b = append(b, '[')
	for i, f := range v {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendFloat(b, f)
	}
	return append(b, ']')
}
