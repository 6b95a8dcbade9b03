package openai

import "tollgate/proxy/jsonbody"

// Reasoning is no part of OpenAI's chat API, and servers have added it each in
// their way: as a string by one name or another (reasoning_content, reasoning; some
// versions of vLLM say it by both), as an object, or as a list of typed parts
// (OpenRouter's reasoning_details, beside reasoning; Mistral's thinking). What is
// encrypted or signed in it is not counted: how long the thought is does not show.

// eachThought gives the texts of a thought, as JSON strings.
func eachThought(v []byte, level int, give func(text []byte)) {
	switch {
	case len(v) <= 2 || level > maxRead:
	case v[0] == '"':
		give(v)
	case v[0] == '[', v[0] == '{':
		for w := jsonbody.Over(v); ; {
			key, inner, ok := w.Next()
			if !ok {
				return
			}
			switch string(key) {
			case "", "text", "summary", "content", "reasoning", "thinking":
				eachThought(inner, level+1, give)
			}
		}
	}
}

// longer is the one of two forms of a thought that has more text; they say the
// same.
func longer(thought, other []byte) []byte {
	if thoughtSize(other) > thoughtSize(thought) {
		return other
	}
	return thought
}

func thoughtSize(v []byte) (size int) {
	eachThought(v, 0, func(text []byte) { size += len(text) - 2 })
	return size
}
