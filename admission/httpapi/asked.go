package httpapi

import (
	"net/http"
	"strings"
)

// asked is what a request's head says, as far as the API looks at it.
type asked struct {
	method   string
	path     string // unescaped
	rawQuery string
	urlBytes int
	length   int64 // of the body; -1 when it is not known before

	authorization, apiKey, contentType single
}

// single is a header field that may be there once; Value counts only then.
type single struct {
	value string
	count int
}

func (f *single) add(value string) {
	f.value = value
	f.count++
}

func askedOf(r *http.Request) asked {
	one := func(name string) single {
		if values := r.Header[name]; len(values) > 0 {
			return single{values[0], len(values)}
		}
		return single{}
	}
	return asked{
		method: r.Method, path: r.URL.Path, rawQuery: r.URL.RawQuery, urlBytes: len(r.RequestURI), length: r.ContentLength,
		authorization: one("Authorization"), apiKey: one("X-Api-Key"), contentType: one("Content-Type"),
	}
}

// credential returns the API key of the one header that carries it. Several
// are refused: which of them counts would be a guess.
func (a *asked) credential() (string, bool) {
	if a.authorization.count+a.apiKey.count != 1 {
		return "", false
	}
	if a.apiKey.count == 1 {
		return a.apiKey.value, a.apiKey.value != ""
	}
	const scheme = "Bearer "
	value := a.authorization.value
	if len(value) <= len(scheme) || !strings.EqualFold(value[:len(scheme)], scheme) {
		return "", false
	}
	return value[len(scheme):], true
}

func (f *single) isJSON() bool {
	if f.count != 1 {
		return false
	}
	if f.value == jsonType {
		return true
	}
	media, parameter, _ := strings.Cut(f.value, ";")
	parameter = strings.ToLower(strings.TrimSpace(parameter))
	return strings.EqualFold(strings.TrimSpace(media), jsonType) &&
		(parameter == "" || parameter == "charset=utf-8" || parameter == `charset="utf-8"`)
}
