package openai

import (
	"bytes"
	"mime"
	"strconv"
	"strings"

	"tollgate/proxy"
	"tollgate/proxy/jsonbody"
)

// form is a multipart/form-data body (RFC 7578) of which some fields are known.
// It is read strictly, and in place: fields that matter occur once, lines end in
// CRLF, and only the model's value is replaced.
type form struct {
	body        []byte
	contentType string
	names       []string
	parts       []part // of names
	files       int64  // parts with a file name
}

// part is where a field's value stands.
type part struct {
	start, end int
	filename   string
}

const (
	maxParts      = 256
	maxPartHeader = 8 << 10
	maxBoundary   = 70 // RFC 2046, 5.1.1
)

func isForm(contentType string) bool {
	return len(contentType) >= len(formType) && strings.EqualFold(contentType[:len(formType)], formType)
}

const formType = "multipart/form-data"

func badForm(detail string) error {
	return &proxy.BadRequest{Detail: "The body is not a form that can be read: " + detail}
}

// readForm finds the fields that names lists.
func readForm(body []byte, contentType string, names []string) (*form, error) {
	media, params, err := mime.ParseMediaType(contentType)
	boundary := params["boundary"]
	if err != nil || media != formType || boundary == "" || len(boundary) > maxBoundary {
		return nil, badForm("Content-Type must be multipart/form-data with a boundary.")
	}
	f := &form{body: body, contentType: contentType, names: names, parts: make([]part, len(names))}
	delimiter := []byte("\r\n--" + boundary)
	// The first delimiter may begin the body; a preamble is nothing of a form.
	if !bytes.HasPrefix(body, delimiter[2:]) {
		return nil, badForm("it does not begin with its boundary.")
	}
	at := len(delimiter) - 2
	for n := 0; ; n++ {
		switch {
		case bytes.HasPrefix(body[at:], []byte("--")):
			if n == 0 {
				return nil, badForm("it has no parts.")
			}
			return f, nil
		case !bytes.HasPrefix(body[at:], []byte("\r\n")):
			return nil, badForm("a boundary is not followed by a line's end.")
		case n == maxParts:
			return nil, badForm("it has more than " + strconv.Itoa(maxParts) + " parts.")
		}
		// A header may be missing; then its empty line follows the boundary's.
		blank := bytes.Index(body[at:], []byte("\r\n\r\n"))
		if blank < 0 || blank > maxPartHeader {
			return nil, badForm("a part's header does not end.")
		}
		start := at + blank + 4
		size := bytes.Index(body[start:], delimiter)
		if size < 0 {
			return nil, badForm("a part does not end.")
		}
		if err := f.part(string(body[at+2:start-2]), start, start+size); err != nil {
			return nil, err
		}
		at = start + size + len(delimiter)
	}
}

// part takes a part by its header.
func (f *form) part(header string, start, end int) error {
	disposition := ""
	for line := range strings.SplitSeq(header, "\r\n") {
		name, value, _ := strings.Cut(line, ":")
		switch {
		case strings.HasPrefix(line, " ") || strings.HasPrefix(line, "\t"):
			return badForm("a part's header goes over two lines.")
		case strings.EqualFold(strings.TrimSpace(name), "Content-Transfer-Encoding"):
			return badForm("a part has a transfer encoding, which forms no longer have.")
		case !strings.EqualFold(strings.TrimSpace(name), "Content-Disposition"):
		case disposition != "":
			return badForm("a part has two Content-Disposition headers.")
		default:
			disposition = value
		}
	}
	media, params, err := mime.ParseMediaType(disposition)
	if err != nil || media != "form-data" {
		return badForm("a part has no Content-Disposition: form-data with a name.")
	}
	name := params["name"]
	if !plainName(disposition, name) {
		return badForm("a part's name is written in a way that not every server reads. Write name=\"…\", without escapes.")
	}
	if _, isFile := params["filename"]; isFile {
		f.files++
	}
	for i, known := range f.names {
		switch {
		case !strings.EqualFold(name, known):
		case name != known:
			return &proxy.BadRequest{Field: known, Detail: "must be spelled exactly so."}
		case f.parts[i].end > 0:
			return &proxy.BadRequest{Field: known, Detail: "is given twice. Give it once."}
		default:
			f.parts[i] = part{start, end, params["filename"]}
		}
	}
	return nil
}

// plainName says that a name stands in its header as it reads, once. Of escapes,
// other character sets and repetitions each server makes something of its own.
func plainName(disposition, name string) bool {
	rest := strings.ReplaceAll(strings.ToLower(disposition), "filename", "")
	return !strings.Contains(name, `\`) && strings.Count(rest, "name=") == 1 && !strings.Contains(rest, "name*") &&
		(strings.Contains(disposition, `name="`+name+`"`) || strings.Contains(disposition, "name="+name))
}

func (f *form) value(i int) []byte { return f.body[f.parts[i].start:f.parts[i].end] }

func (f *form) str(i int) string { return jsonbody.View(f.value(i)) }

func (f *form) model(path string) (string, error) {
	if path != "" {
		return checkModel(path)
	}
	return checkModel(f.str(0))
}

// flag reads a boolean as clients write it into forms.
func (f *form) flag(i int) (bool, error) {
	switch f.str(i) {
	case "", "false", "False", "0":
		return false, nil
	case "true", "True", "1":
		return true, nil
	}
	return false, &proxy.BadRequest{Field: f.names[i], Detail: "must be true or false."}
}

func (f *form) figure(i int, least, most, otherwise int64) (int64, error) {
	if f.parts[i].end == f.parts[i].start {
		return otherwise, nil
	}
	n, ok := jsonbody.Count(f.str(i))
	if !ok || n < least || n > most {
		return 0, &proxy.BadRequest{
			Field:  f.names[i],
			Detail: "must be a whole number from " + strconv.FormatInt(least, 10) + " to " + strconv.FormatInt(most, 10) + ".",
		}
	}
	return n, nil
}

// upstream writes the upstream's name for the model, which is the first of the
// names. Names with line ends cannot be written and are a mistake in the table.
func (f *form) upstream(body []byte, model string) ([]byte, string, error) {
	at := f.parts[0]
	if model == "" || string(body[at.start:at.end]) == model {
		return body, f.contentType, nil
	}
	if strings.ContainsAny(model, "\r\n") {
		return nil, "", &proxy.BadRequest{Field: "model", Detail: "has a line's end in its upstream name."}
	}
	if at.end > 0 {
		edit := jsonbody.Edit{From: at.start, To: at.end, Text: []byte(model)}
		return jsonbody.Splice(body, edit), f.contentType, nil
	}
	// The path named the model. A part of its own comes first.
	line := bytes.IndexByte(body, '\n') + 1
	member := append([]byte("Content-Disposition: form-data; name=\"model\"\r\n\r\n"+model+"\r\n"), body[:line]...)
	return jsonbody.Splice(body, jsonbody.Edit{From: line, To: line, Text: member}), f.contentType, nil
}
