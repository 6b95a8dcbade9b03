package fakeprovider

import (
	"net/http"
	"strings"

	"github.com/tidwall/gjson"
)

// target is what a path leads to.
type target struct {
	name    string // part of what an answer follows from
	dialect *dialect
	model   string // named by the path
	read    func(a *ask, root gjson.Result) *badRequest
	raw     func(a *ask, x *exchange) *badRequest // where the body is no JSON
	answer  func(x *exchange, a *ask, root gjson.Result)
	list    func(s *Server, w http.ResponseWriter, r *http.Request)
}

// route finds the target of a request. A path that leads nowhere has no answer.
func (s *Server) route(r *http.Request) target {
	path := r.URL.Path
	if rest, azure := strings.CutPrefix(path, "/openai/deployments/"); azure {
		deployment, tail, _ := strings.Cut(rest, "/")
		t := openAITarget(tail)
		t.model = deployment
		return post(r, t)
	}
	path = strings.TrimPrefix(path, "/openai")
	if rest, ok := strings.CutPrefix(path, "/v1beta/models"); ok {
		return geminiTarget(r, strings.TrimPrefix(rest, "/"))
	}
	if rest, ok := strings.CutPrefix(path, "/v1/"); ok {
		switch {
		case rest == "models" || strings.HasPrefix(rest, "models/"):
			if r.Method == http.MethodGet {
				return target{dialect: openAI, list: (*Server).listModels}
			}
			if strings.Contains(rest, ":") { // Gemini's clients ask v1, too
				return geminiTarget(r, strings.TrimPrefix(rest, "models/"))
			}
		case rest == "messages":
			return post(r, target{name: "messages", dialect: anthropic, read: (*ask).readMessages, answer: (*exchange).messages})
		case rest == "messages/count_tokens":
			return post(r, target{name: "messages", dialect: anthropic, read: (*ask).readMessages, answer: (*exchange).countTokens})
		default:
			return post(r, openAITarget(rest))
		}
	}
	return target{dialect: openAI}
}

func post(r *http.Request, t target) target {
	if r.Method != http.MethodPost {
		return target{dialect: t.dialect}
	}
	return t
}

func openAITarget(tail string) target {
	t := target{name: tail, dialect: openAI}
	switch tail {
	case "chat/completions":
		t.read, t.answer = (*ask).readChat, (*exchange).chat
	case "responses":
		t.dialect = openAIResponses
		t.read, t.answer = (*ask).readResponse, (*exchange).response
	case "completions":
		t.read, t.answer = (*ask).readCompletion, (*exchange).completion
	case "embeddings":
		t.read, t.answer = (*ask).readEmbeddings, (*exchange).embeddings
	case "images/generations":
		t.read, t.answer = (*ask).readImages, (*exchange).images
	case "audio/speech":
		t.read, t.answer = (*ask).readSpeech, (*exchange).speech
	case "audio/transcriptions":
		t.raw, t.answer = (*ask).readTranscription, (*exchange).transcription
	}
	return t
}

// geminiTarget finds what "{model}:{verb}" asks for.
func geminiTarget(r *http.Request, rest string) target {
	if r.Method == http.MethodGet {
		return target{dialect: gemini, list: (*Server).listModels}
	}
	model, verb, _ := strings.Cut(rest, ":")
	t := target{name: "generateContent", dialect: gemini, model: model, read: (*ask).readGemini}
	switch verb {
	case "generateContent":
		t.answer = (*exchange).generate
	case "countTokens":
		t.answer = (*exchange).geminiCount
	case "streamGenerateContent":
		if r.URL.Query().Get("alt") == "sse" { // the other form, one JSON list, is not offered
			t.answer = (*exchange).generate
			t.read = func(a *ask, root gjson.Result) *badRequest {
				a.stream = true
				return a.readGemini(root)
			}
		}
	}
	return post(r, t)
}
