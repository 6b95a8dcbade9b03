package fakeprovider

import (
	"net/http"
	"slices"
	"strings"
)

// The day when all these models were made.
const (
	modelCreated   = 1_770_000_000
	modelCreatedAt = "2026-02-02T02:40:00Z"
)

// listModels answers /v1/models and /v1/models/{id}, in the dialect whose header
// came along, and Gemini's /v1beta/models.
func (s *Server) listModels(w http.ResponseWriter, r *http.Request) {
	if x := (&exchange{server: s, r: r}); !x.authorized() {
		w.Header()["Content-Type"] = jsonType
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = w.Write(openAI.errorBody(nil, http.StatusUnauthorized, bad("", "Incorrect API key provided."), ""))
		return
	}
	path := strings.TrimPrefix(r.URL.Path, "/openai")
	one, list := openAIModel, func(b []byte, _ []string) []byte { return append(b, `],"object":"list"}`...) }
	open, d := `{"data":[`, openAI
	switch {
	case strings.HasPrefix(path, "/v1beta/"):
		one, list = geminiModel, func(b []byte, _ []string) []byte { return append(b, `]}`...) }
		open, d = `{"models":[`, gemini
	case r.Header.Get("Anthropic-Version") != "":
		one, list, d = anthropicModel, anthropicListEnd, anthropic
	}
	ids := slices.Sorted(slices.Values(s.models))
	h := w.Header()
	h["Content-Type"] = jsonType
	_, only, _ := strings.Cut(path, "models/")
	if only != "" {
		if !slices.Contains(ids, only) {
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write(d.errorBody(nil, http.StatusNotFound, bad("model", "The model `"+only+"` does not exist."), "req_models"))
			return
		}
		_, _ = w.Write(one(nil, only))
		return
	}
	b := []byte(open)
	for i, id := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		b = one(b, id)
	}
	_, _ = w.Write(list(b, ids)) // a client that left misses nothing
}

func openAIModel(b []byte, id string) []byte {
	b = appendText(b, `{"id":`, id)
	return append(appendInt(b, `,"object":"model","created":`, modelCreated), `,"owned_by":"fake"}`...)
}

func anthropicModel(b []byte, id string) []byte {
	b = appendText(b, `{"type":"model","id":`, id)
	b = appendText(b, `,"display_name":`, id)
	return append(b, `,"created_at":"`+modelCreatedAt+`","lifecycle":"active","deprecated_at":null,"retires_at":null,"line":null,`+
		`"max_input_tokens":200000,"max_tokens":64000}`...)
}

func anthropicListEnd(b []byte, ids []string) []byte {
	b = appendText(b, `],"has_more":false,"first_id":`, ids[0])
	return append(appendText(b, `,"last_id":`, ids[len(ids)-1]), '}')
}

func geminiModel(b []byte, id string) []byte {
	b = appendText(b, `{"name":`, "models/"+id)
	b = appendText(b, `,"version":"1","displayName":`, id)
	return append(b, `,"inputTokenLimit":1048576,"outputTokenLimit":65536,"supportedGenerationMethods":["generateContent","countTokens"]}`...)
}
