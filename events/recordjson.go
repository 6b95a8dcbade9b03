package events

import (
	"encoding/base64"
	"unicode/utf8"
)

// AppendRecord appends a record as one JSON object to dst: topic, partition,
// offset, time, headers, key, value. Bytes that are valid UTF-8 become a
// string, others base64 under key_base64 or value_base64; null is left out.
// Package logfile says what a file of such lines looks like.
func AppendRecord(dst []byte, r *Record) []byte {
	dst = append(dst, `{"topic":`...)
	dst = appendString(dst, r.Topic)
	dst = appendInt(dst, `,"partition":`, int64(r.Partition))
	dst = appendInt(dst, `,"offset":`, r.Offset)
	dst = appendTimeField(dst, `,"time":"`, r.Time)
	for i := range r.Headers {
		if i == 0 {
			dst = append(dst, `,"headers":[`...)
		} else {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"key":`...)
		dst = appendString(dst, r.Headers[i].Key)
		dst = appendBytes(dst, `,"value`, r.Headers[i].Value)
		dst = append(dst, '}')
	}
	if len(r.Headers) > 0 {
		dst = append(dst, ']')
	}
	dst = appendBytes(dst, `,"key`, r.Key)
	dst = appendBytes(dst, `,"value`, r.Value)
	return append(dst, '}')
}

func appendBytes(dst []byte, name string, v []byte) []byte {
	if v == nil {
		return dst
	}
	dst = append(dst, name...)
	if utf8.Valid(v) {
		dst = append(dst, `":`...)
		return appendString(dst, string(v))
	}
	dst = append(dst, `_base64":"`...)
	dst = base64.StdEncoding.AppendEncode(dst, v)
	return append(dst, '"')
}

// ParseRecord reads what AppendRecord writes, strictly: an *InvalidError for
// everything else, also for a field that is unknown or comes twice.
func ParseRecord(data []byte) (Record, error) {
	r := Record{}
	var seen uint32
	s := newLineScanner(data)
	limit := len(data)
	s.open()
	for name, ok := s.next(); ok; name, ok = s.next() {
		s.field = name
		switch name {
		case "topic":
			s.mark(&seen, 0)
			r.Topic = s.str(maxSourceBytes)
		case "partition":
			s.mark(&seen, 1)
			r.Partition = int(s.integer(0))
		case "offset":
			s.mark(&seen, 2)
			r.Offset = s.integer(0)
		case "time":
			s.mark(&seen, 3)
			r.Time = s.time()
		case "headers":
			s.mark(&seen, 4)
			r.Headers = s.headers(limit)
		case "key":
			s.mark(&seen, 5)
			r.Key = []byte(s.str(limit))
		case "key_base64":
			s.mark(&seen, 5)
			r.Key = s.base64(limit)
		case "value":
			s.mark(&seen, 6)
			r.Value = []byte(s.str(limit))
		case "value_base64":
			s.mark(&seen, 6)
			r.Value = s.base64(limit)
		default:
			s.fail(ReasonUnknownField, "is not known")
		}
	}
	s.field = ""
	s.end()
	s.require(seen, recordRequired)
	s.notEmpty("topic", r.Topic)
	if s.err != nil {
		return Record{}, s.err
	}
	return r, nil
}

var recordRequired = []string{"topic", "partition", "offset", "time"}

// newLineScanner is for lines of a file, which the file's reader bounds. A
// record may hold anything, so NUL is no error here.
func newLineScanner(data []byte) scanner {
	s := scanner{nul: true}
	if !utf8.Valid(data) {
		s.err = invalid(ReasonBadUTF8, "", "line is not UTF-8")
		return s
	}
	s.src = string(data)
	return s
}

func (s *scanner) headers(limit int) []Header {
	if s.err != nil {
		return nil
	}
	if s.i >= len(s.src) || s.src[s.i] != '[' {
		s.typeError("is not an array")
		return nil
	}
	s.i++
	headers := make([]Header, 0, 8)
	for s.err == nil {
		s.space()
		if s.i < len(s.src) && s.src[s.i] == ']' && len(headers) == 0 {
			break
		}
		headers = append(headers, s.header(limit))
		s.space()
		if s.i < len(s.src) && s.src[s.i] == ',' {
			s.i++
			continue
		}
		break
	}
	if s.err == nil && (s.i >= len(s.src) || s.src[s.i] != ']') {
		s.fail(ReasonBadJSON, "has no end")
	}
	s.i++
	return headers
}

func (s *scanner) header(limit int) Header {
	var h Header
	var seen uint32
	s.open()
	for name, ok := s.next(); ok; name, ok = s.next() {
		switch name {
		case "key":
			s.mark(&seen, 0)
			h.Key = s.str(limit)
		case "value":
			s.mark(&seen, 1)
			h.Value = []byte(s.str(limit))
		case "value_base64":
			s.mark(&seen, 1)
			h.Value = s.base64(limit)
		default:
			s.fail(ReasonUnknownField, "is not known")
		}
	}
	s.require(seen, []string{"key"})
	return h
}

func (s *scanner) base64(limit int) []byte {
	v, err := base64.StdEncoding.Strict().DecodeString(s.str(limit))
	if err != nil {
		s.fail(ReasonBadJSON, "is not base64")
		return nil
	}
	return v
}
