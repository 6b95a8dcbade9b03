package openai_test

import (
	"strconv"
	"strings"
	"testing"

	"tollgate/proxy"
)

// An answer that repeats its prompt has generated only what comes after it. One
// that does not repeat it has generated all of itself, whatever was asked for.
func TestEchoIsNoOutput(t *testing.T) {
	type answer struct {
		index  int
		pieces []string
	}
	for name, tt := range map[string]struct {
		request string // but for model, echo and stream
		answers []answer
		want    int64 // a token a byte
	}{
		"echoed":               {`"prompt":"once"`, []answer{{0, []string{"once", " more"}}}, 5},
		"echoed in pieces":     {`"prompt":"once"`, []answer{{0, []string{"o", "n", "ce mo", "re"}}}, 5},
		"echoed, escaped":      {`"prompt":"\u006fnce\n\ud83d\ude00"`, []answer{{0, []string{"on", "ce\n😀", "!"}}}, 1},
		"echoed, no more":      {`"prompt":"once","max_tokens":0`, []answer{{0, []string{"on", "ce"}}}, 0},
		"ignored":              {`"prompt":"once upon a time"`, []answer{{0, []string{"more", " text"}}}, 9},
		"ignored, begins like": {`"prompt":"once"`, []answer{{0, []string{"on", "ly", " this"}}}, 9},
		"ignored, its start":   {`"prompt":"yes or no"`, []answer{{0, []string{"y", "es"}}}, 3},
		"its start, capped":    {`"prompt":"yes or no","max_tokens":2`, []answer{{0, []string{"y", "es"}}}, 2},
		"echoed, then again":   {`"prompt":"once"`, []answer{{0, []string{"once", "once", " more"}}}, 9},
		"the prompt, later":    {`"prompt":"once"`, []answer{{0, []string{"more ", "once", " more"}}}, 14},
		"begins otherwise":     {`"prompt":"once"`, []answer{{0, []string{" once", " more"}}}, 10},
		"an empty prompt":      {`"prompt":""`, []answer{{0, []string{"more"}}}, 4},
		"no prompt":            {`"n":1`, []answer{{0, []string{"more"}}}, 4},
		"token numbers":        {`"prompt":[1,2,3]`, []answer{{0, []string{"more"}}}, 4},
		"lists of numbers":     {`"prompt":[[1,2,3]]`, []answer{{0, []string{"more"}}}, 4},
		"each its own prompt": {
			`"prompt":["ab","c"],"n":2,"best_of":3`,
			[]answer{{3, []string{"c", "4"}}, {0, []string{"ab1"}}, {1, []string{"ab", "2"}}, {2, []string{"ab", "3"}}, {9, []string{"c5"}}},
			1 + 1 + 1 + 3 + 2,
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := endpoint(t, "/v1/completions")
			stream := e.Stream(read(t, e, `{"model":"m","echo":true,"stream":true,`+tt.request+`}`), byteCounter{})
			var whole []string
			for _, a := range tt.answers {
				choice := func(text, reason string) string {
					return `{"index":` + strconv.Itoa(a.index) + `,"text":` + strconv.Quote(text) + `,"finish_reason":` + reason + `}`
				}
				for _, piece := range a.pieces {
					follow(t, stream, lines(`{"choices":[`+choice(piece, "null")+`]}`))
				}
				whole = append(whole, choice(strings.Join(a.pieces, ""), `"stop"`))
			}
			answered := e.Answer([]byte(`{"choices":[`+strings.Join(whole, ",")+`]}`), "application/json", read(t, e, `{"model":"m","echo":true,`+tt.request+`}`), byteCounter{})
			if got := stream.Tally(true); !got.Content || got.Delivered.OutputTokens != tt.want {
				t.Errorf("streamed: %+v, want %d output tokens", got, tt.want)
			}
			if name == "its start, capped" {
				return // of a whole answer it is known that no more comes
			}
			if !answered.Content || answered.Delivered.OutputTokens != tt.want {
				t.Errorf("whole: %+v, want %d output tokens", answered, tt.want)
			}
		})
	}
}

// A long echo in pieces is not taken for an answer that outgrew its cap.
func TestEchoInPiecesStaysWithinTheCap(t *testing.T) {
	e := endpoint(t, "/v1/completions")
	prompt := strings.Repeat("word ", 10_000)
	s := e.Stream(read(t, e, `{"model":"m","echo":true,"stream":true,"max_tokens":5,"prompt":"`+prompt+`"}`), byteCounter{})
	say := func(text string) *proxy.Tally {
		follow(t, s, lines(`{"choices":[{"index":0,"text":"`+text+`"}]}`))
		rough, exact := s.Tally(false), s.Tally(true)
		if rough.Delivered.OutputTokens > 5 {
			t.Fatalf("rough: %+v", rough.Delivered)
		}
		return &exact
	}
	for range 10 {
		if got := say(prompt[:len(prompt)/10]); got.Delivered.OutputTokens > 5 {
			t.Fatalf("%+v", got.Delivered)
		}
	}
	if got := say("end"); got.Delivered.OutputTokens != 3 {
		t.Errorf("%+v", got.Delivered)
	}
}
