package dialecttest

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"tollgate/events"
	"tollgate/proxy"
	"tollgate/proxy/sse"
)

// follow feeds a stream's bytes in the given pieces and gives what is forwarded.
func follow(t testing.TB, s proxy.Stream, p *sse.Parser, pieces ...[]byte) []byte {
	t.Helper()
	var out []byte
	for _, piece := range pieces {
		if err := p.Feed(piece, func(ev sse.Event) error {
			if s.Event(ev) == proxy.Forward {
				out = append(out, ev.Raw...)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func TestWholeAndStreamedAreOneAnswer(t *testing.T) {
	forEach(t, func(t *testing.T, s *sample) {
		e, ask, _ := s.ask(t, false)
		whole := e.Answer([]byte(s.answer), "application/json", ask, letters{})
		if !whole.Complete || !whole.Content || whole.Garbage || whole.Failed || whole.OutputUnsaid || whole.Model != "m" {
			t.Errorf("%+v", whole)
		}
		if diff := cmp.Diff(&s.usage, whole.Usage); diff != "" {
			t.Error(diff)
		}
		// Where the usage is said, text need not be counted.
		silent := strings.NewReplacer(`"usage"`, `"x-usage"`, `"usageMetadata"`, `"x-usage"`).Replace(s.answer)
		unsaid := e.Answer([]byte(silent), "application/json", ask, letters{})
		if unsaid.Usage != nil || unsaid.Delivered.OutputTokens <= 0 {
			t.Errorf("%+v", unsaid)
		}
		whole.Delivered = unsaid.Delivered
		e, ask, _ = s.ask(t, true)
		stream := e.Stream(ask, letters{})
		if out := follow(t, stream, sse.New(0), []byte(s.events)); string(out) != s.events {
			t.Errorf("forwarded %s", out)
		}
		if diff := cmp.Diff(whole, stream.Tally(true)); diff != "" {
			t.Error(diff)
		}
		// A cheap look may be wrong about what was counted, and about nothing else.
		rough := stream.Tally(false)
		if rough.Delivered.OutputTokens <= 0 {
			t.Errorf("%+v", rough)
		}
		rough.Delivered = whole.Delivered
		if diff := cmp.Diff(whole, rough); diff != "" {
			t.Error(diff)
		}
	})
}

// Wherever the bytes of a stream are cut, and whatever its line ends and
// comments, the same is seen and the same goes out.
func TestStreamsCutAnywhere(t *testing.T) {
	forEach(t, func(t *testing.T, s *sample) {
		for name, stream := range map[string]string{
			"as it is":   s.events,
			"CRLF":       strings.ReplaceAll(s.events, "\n", "\r\n"),
			"CR":         strings.ReplaceAll(s.events, "\n", "\r"),
			"comments":   ": begin\n\n" + strings.ReplaceAll(s.events, "data: ", ": keep-alive\ndata:"),
			"two of all": strings.ReplaceAll(s.events, "\ndata: {", "\nid: 7\nretry: 10\ndata: {\ndata:"),
		} {
			stream := []byte(stream)
			e, ask, _ := s.ask(t, true)
			want := e.Stream(ask, letters{})
			follow(t, want, sse.New(0), stream)
			if tally := want.Tally(true); !tally.Complete || tally.Garbage || tally.Usage == nil || *tally.Usage != s.usage {
				t.Fatalf("%s: %+v", name, tally)
			}
			step := 5
			if name == "as it is" {
				step = 1
			}
			for cut := 0; cut < len(stream); cut += step {
				got := e.Stream(ask, letters{})
				if out := follow(t, got, sse.New(0), stream[:cut], stream[cut:]); !bytes.Equal(out, stream) {
					t.Fatalf("%s, cut at %d: forwarded %q", name, cut, out)
				}
				if diff := cmp.Diff(want.Tally(true), got.Tally(true)); diff != "" {
					t.Fatalf("%s, cut at %d: %s", name, cut, diff)
				}
			}
			got, p := e.Stream(ask, letters{}), sse.New(0)
			for i := range stream {
				follow(t, got, p, stream[i:i+1])
			}
			if diff := cmp.Diff(want.Tally(true), got.Tally(true)); diff != "" {
				t.Errorf("%s, byte by byte: %s", name, diff)
			}
		}
	})
}

// Usage that is said again changes nothing, wherever it is repeated after it was
// said: M1's kind.
func TestUsageSaidAgainCountsOnce(t *testing.T) {
	forEach(t, func(t *testing.T, s *sample) {
		e, ask, _ := s.ask(t, true)
		stream, said := e.Stream(ask, letters{}), 0
		for _, ev := range parse(t, []byte(s.events)) {
			stream.Event(ev)
			if bytes.Contains(ev.Data, []byte(`"usage`)) {
				said++
				stream.Event(ev)
				stream.Event(ev)
			}
		}
		if tally := stream.Tally(true); said == 0 || tally.Usage == nil || *tally.Usage != s.usage {
			t.Errorf("%+v", tally)
		}
	})
}

// However far a stream came and whyever it ends, what the client has got then is
// a stream that its dialect knows as ended or as failed; and what is charged is
// neither negative nor more than was said or seen.
func TestFinishEndsAStreamAnywhere(t *testing.T) {
	forEach(t, func(t *testing.T, s *sample) {
		all := parse(t, []byte(s.events))
		for came := range len(all) + 1 {
			for _, reason := range []string{"output_cap", "quota", "shutdown", "upstream_broke_off", "max_hold", ""} {
				e, ask, _ := s.ask(t, true)
				stream, client := e.Stream(ask, letters{}), e.Stream(ask, letters{})
				for _, ev := range all[:came] {
					if stream.Event(ev) == proxy.Forward {
						client.Event(ev)
					}
				}
				before := stream.Tally(true)
				charged := proxy.Judge(proxy.Ending{Phase: proxy.PhaseAnswered, Cause: proxy.CauseCut, Tally: before, InputTokens: 2})
				if u := charged.Usage; u.OutputTokens < 0 || u.OutputTokens > 33 || u.InputTokens < 0 || u.InputTokens > 13 || before.Content && u.InputTokens+u.OutputTokens == 0 {
					t.Errorf("%d of %d: charged %+v", came, len(all), charged)
				}
				out := stream.Finish(proxy.End{Reason: reason, Detail: "Why \"so\".\n", Usage: charged.Usage})
				for _, ev := range parse(t, out) {
					client.Event(ev)
				}
				got := client.Tally(true)
				if !got.Complete && !got.Failed || got.Garbage {
					t.Errorf("%d of %d, %s: the client sees %+v after %s", came, len(all), reason, got, out)
				}
				if came == len(all) && len(out) != 0 {
					t.Errorf("%s: an ended stream ends again: %s", reason, out)
				}
				if cut := reason == "quota" || reason == "output_cap"; cut && before.Content && (got.Failed || !got.Complete) {
					t.Errorf("%d of %d, %s: content is lost in an error: %s", came, len(all), reason, out)
				}
				if got.Failed && reason != "" && !bytes.Contains(out, []byte(reason)) {
					t.Errorf("%s is not said: %s", reason, out)
				}
				if text := before.Delivered; got.Delivered.OutputTokens != text.OutputTokens {
					t.Errorf("%d of %d, %s: the end adds content: %+v", came, len(all), reason, got.Delivered)
				}
			}
		}
	})
}

// What another dialect says, and what is none, is garbage and no answer.
func TestWhatIsNotTheDialectsIsGarbage(t *testing.T) {
	forEach(t, func(t *testing.T, s *sample) {
		e, ask, _ := s.ask(t, false)
		for _, body := range []string{"", "null", "7", "[]", "<html>no</html>", `{"detail":"Not Found"}`, s.answer[:len(s.answer)/2], s.answer + "x", strings.Repeat("[", 1<<20)} {
			if tally := e.Answer([]byte(body), "application/json", ask, letters{}); !tally.Garbage || tally.Usage != nil {
				t.Errorf("%.60s: %+v", body, tally)
			}
		}
		for i := range samples {
			if other := &samples[i]; other.dialect != s.dialect {
				if tally := e.Answer([]byte(other.answer), "application/json", ask, letters{}); !tally.Garbage {
					t.Errorf("%s's answer: %+v", other.name, tally)
				}
			}
		}
		e, ask, _ = s.ask(t, true)
		for _, line := range []string{"hello", `{"choices":[`, "\x00\x01", "<html>", "7"} {
			stream := e.Stream(ask, letters{})
			follow(t, stream, sse.New(0), []byte("data: "+line+"\n\n"))
			if tally := stream.Tally(true); !tally.Garbage || tally.Content || tally.Complete {
				t.Errorf("%s: %+v", line, tally)
			}
		}
	})
}

// An event beyond the parser's bound passes, counts, and breaks nothing.
func TestAnEventThatIsTooLongIsNotFree(t *testing.T) {
	forEach(t, func(t *testing.T, s *sample) {
		e, ask, _ := s.ask(t, true)
		stream, p := e.Stream(ask, letters{}), sse.New(1<<12)
		long := []byte("data: {\"x\":\"" + strings.Repeat("a", 100_000) + "\"}\n\n")
		if out := follow(t, stream, p, long[:5000], long[5000:], []byte(s.events)); !bytes.Equal(out, append(bytes.Clone(long), s.events...)) {
			t.Error("not all is forwarded")
		}
		tally := stream.Tally(true)
		if !tally.Content || tally.Garbage || tally.Usage == nil || *tally.Usage != s.usage {
			t.Errorf("%+v", tally)
		}
		// Without the usage that comes later, it is charged.
		stream = e.Stream(ask, letters{})
		follow(t, stream, sse.New(1<<12), long)
		charged := proxy.Judge(proxy.Ending{Phase: proxy.PhaseAnswered, Cause: proxy.CauseClientGone, Tally: stream.Tally(true), InputTokens: 2})
		if !charged.Estimated || charged.Usage.OutputTokens+charged.Usage.AudioMillis == 0 {
			t.Errorf("%+v", charged)
		}
	})
}

// An upstream's impossible figures are none: the own count is charged.
func TestImpossibleFiguresAreNoUsage(t *testing.T) {
	for _, bad := range []string{"-33", "33.5", "3.3e1", "9007199254740993", "99999999999999999999999", `"33"`, "true", "{}"} {
		for i := range samples {
			s := &samples[i]
			e, ask, _ := s.ask(t, true)
			stream := e.Stream(ask, letters{})
			figures := strings.NewReplacer(":33,", ":"+bad+",", ":33}", ":"+bad+"}", ":26,", ":"+bad+",")
			follow(t, stream, sse.New(0), []byte(figures.Replace(s.events)))
			tally := stream.Tally(true)
			charged := proxy.Judge(proxy.Ending{Phase: proxy.PhaseAnswered, Cause: proxy.CauseUpstreamEnd, Tally: tally, InputTokens: 2})
			if charged.Verb != proxy.Settle || !charged.Estimated || charged.Usage.OutputTokens != tally.Delivered.OutputTokens || charged.Usage == (events.Usage{}) {
				t.Errorf("%s, %s: %+v of %+v", s.name, bad, charged, tally)
			}
		}
	}
}
