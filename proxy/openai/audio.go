package openai

import (
	"encoding/base64"
	"encoding/binary"
	"strings"
)

// Bytes a second of audio, to tell its length from its size. Compressed audio is
// taken for 64 kbit/s, at which speech is usually kept: a higher rate is
// overestimated, a lower one underestimated.
const (
	compressedRate = 8_000
	flacRate       = 32_000
	pcmRate        = 48_000 // 24 kHz, 16 bits, as OpenAI's models speak
)

// wavHeader is how much of a WAV file is looked at for its rate; of that, the
// shortest head is wavHead bytes, which are no sound.
const (
	wavHeader = 64
	wavHead   = 44
)

// audioMillis estimates the length of an audio file of size bytes, of which head
// is the beginning. format is a file's ending or the dialect's name of a format.
func audioMillis(head []byte, size int64, format string) int64 {
	rate := int64(compressedRate)
	switch strings.ToLower(format) {
	case "flac":
		rate = flacRate
	case "pcm", "pcm16":
		rate = pcmRate
	}
	if len(head) >= 32 && string(head[:4]) == "RIFF" && string(head[8:12]) == "WAVE" {
		// The byte rate stands in the format chunk, which comes first.
		if string(head[12:16]) == "fmt " {
			if said := int64(binary.LittleEndian.Uint32(head[28:32])); said >= 1_000 && said <= 384_000 {
				rate, size = said, max(size-wavHead, 0)
			}
		}
	}
	return (size*1000 + rate - 1) / rate
}

func audioMillisBase64(data, format string) int64 {
	if _, after, found := strings.Cut(data, ";base64,"); found {
		data = after
	}
	head := data
	if len(head) > wavHeader/3*4 {
		head = head[:wavHeader/3*4]
	}
	decoded, err := base64.StdEncoding.DecodeString(head)
	if err != nil {
		decoded = nil
	}
	return audioMillis(decoded, decodedSize(data), format)
}

// decodedSize is the size of what base64 holds.
func decodedSize(data string) int64 {
	data = strings.TrimRight(data, "=")
	return int64(len(data)) * 3 / 4
}
