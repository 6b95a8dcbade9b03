package forward

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"tollgate/events"
	"tollgate/tenancy"
)

// randomStreams is how many streams TestRandomStreams makes; the variable asks
// for more.
func randomStreams(t *testing.T) int {
	n := 1000
	if raceEnabled {
		n = 400
	}
	if text := os.Getenv("TOLLGATE_TEST_PROXY_STREAMS"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	if testing.Short() {
		n = 100
	}
	return n
}

// served is what the model server's own log says of a request.
type served struct {
	words   int64 // generated
	written int64 // of which went out whole
	usage   bool  // its usage went out whole
	cut     bool  // it broke off by itself
}

// story is what happens to one stream, drawn from its seed.
type story struct {
	text    string // all that the server would say
	words   int64
	usageAt int // where its usage is out, -1: it says none
	cutAt   int // bytes after which the server breaks off, -1
	leaveAt int // bytes after which the client leaves, -1
	asked   bool
}

func draw(seed uint64) story {
	r := rand.New(rand.NewPCG(seed, 42))
	s := story{words: int64(r.IntN(60)), usageAt: -1, cutAt: -1, leaveAt: -1, asked: r.IntN(2) == 0}
	var b strings.Builder
	if r.IntN(4) == 0 {
		b.WriteString(": ping\r\n\r\n")
	}
	for i := range s.words {
		piece := delta(fmt.Sprintf("w%d ", i))
		if r.IntN(8) == 0 {
			piece = strings.ReplaceAll(piece, "\n", "\r\n")
		}
		b.WriteString(piece)
		if r.IntN(16) == 0 {
			b.WriteString(": keep-alive\n\n")
		}
	}
	b.WriteString(stopEvent)
	if r.IntN(4) > 0 {
		b.WriteString(usageEvent(fmt.Sprintf(`{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":0}`, 100+seed%7, s.words)))
		s.usageAt = b.Len()
	}
	if r.IntN(8) > 0 {
		b.WriteString(doneEvent)
	}
	s.text = b.String()
	switch r.IntN(5) {
	case 0:
		s.cutAt = r.IntN(len(s.text))
	case 1:
		s.leaveAt = r.IntN(len(s.text))
	case 2:
		s.cutAt, s.leaveAt = r.IntN(len(s.text)), r.IntN(len(s.text))
	}
	return s
}

func countWords(text string) int64 { return int64(strings.Count(whatIsWhole(text), `"content":"w`)) }

// whatIsWhole is text up to the end of its last event.
func whatIsWhole(text string) string {
	text = strings.ReplaceAll(strings.ReplaceAll(text, "\r\n", "\n"), "\r", "\n") // each is a line's end
	return text[:strings.LastIndex(text, "\n\n")+1]
}

// Streams are cut at any byte on either side. Whatever happens, what is charged
// is what the model server's own log says, or is marked as estimated and lies
// between what the client got and what the server sent; and nothing is left.
func TestRandomStreams(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{limits: []tenancy.Limit{perMinute(1 << 39), concurrency(1 << 30)}, fresh: true, quiet: true})
	var mu sync.Mutex
	log := map[string]served{}
	w.upstreams[0].script(func(rw http.ResponseWriter, r *http.Request, _ []byte) {
		seed, err := strconv.ParseUint(r.Header.Get("X-Seed"), 10, 64)
		if err != nil {
			rw.WriteHeader(http.StatusBadRequest)
			return
		}
		s, random := draw(seed), rand.New(rand.NewPCG(seed, 43))
		text := s.text
		if s.cutAt >= 0 {
			text = text[:s.cutAt]
		}
		rw.Header().Set("Content-Type", "text/event-stream")
		flush := http.NewResponseController(rw).Flush
		sent := 0
		for sent < len(text) {
			n, err := io.WriteString(rw, text[sent:min(len(text), sent+1+random.IntN(400))])
			sent += n
			if err == nil {
				err = flush()
			}
			if err != nil || r.Context().Err() != nil {
				break
			}
		}
		mu.Lock()
		log[r.Header.Get("X-Tollgate-Reservation")] = served{
			words: s.words, written: countWords(text[:sent]), usage: s.usageAt >= 0 && sent >= s.usageAt, cut: s.cutAt >= 0 && sent == s.cutAt,
		}
		mu.Unlock()
		if s.cutAt >= 0 {
			breakOff(rw)
		}
	})

	n := randomStreams(t)
	first := rand.Uint64() >> 1
	t.Logf("seeds from %d", first)
	type got struct {
		seed  uint64
		words int64
		whole bool // the client read to the end
	}
	clients := map[string]got{} // by reservation
	seeds := make(chan uint64)
	var workers sync.WaitGroup
	for range 32 {
		workers.Go(func() {
			for seed := range seeds {
				s := draw(seed)
				extra := `,"stream":true,"max_tokens":1000`
				if s.asked {
					extra += `,"stream_options":{"include_usage":true}`
				}
				ctx, cancel := context.WithCancel(context.Background())
				resp, err := w.client.Do(w.request(ctx, extra, "X-Seed", strconv.FormatUint(seed, 10)))
				if err != nil {
					t.Errorf("seed %d: %v", seed, err)
					cancel()
					continue
				}
				var body []byte
				if s.leaveAt >= 0 {
					body = make([]byte, s.leaveAt)
					k, _ := io.ReadFull(resp.Body, body)
					body = body[:k]
				} else if body, err = io.ReadAll(resp.Body); err != nil {
					t.Errorf("seed %d: the stream ends with %v", seed, err)
				}
				cancel()
				resp.Body.Close()
				text := string(body)
				if !s.asked && strings.Contains(text, `"usage"`) {
					t.Errorf("seed %d: usage was not asked for", seed)
				}
				if s.leaveAt < 0 && s.cutAt < 0 {
					want := s.text
					if s.usageAt >= 0 && !s.asked {
						from := strings.LastIndex(s.text[:s.usageAt-2], "\n\n") + 2
						want = s.text[:from] + s.text[s.usageAt:]
					}
					if text != want {
						t.Errorf("seed %d: got\n%q\nwant\n%q", seed, text, want)
					}
				}
				mu.Lock()
				clients[resp.Header.Get("X-Tollgate-Reservation")] = got{seed, countWords(text), s.leaveAt < 0}
				mu.Unlock()
			}
		})
	}
	for i := range n {
		seeds <- first + uint64(i)
	}
	close(seeds)
	workers.Wait()
	w.eventually("no request under way", func() bool { return w.handler.underWay() == 0 })

	var exact, estimated, charged int64
	for _, r := range w.ended(n) {
		mu.Lock()
		client, server := clients[r.ReservationID], log[r.ReservationID]
		mu.Unlock()
		story := draw(client.seed)
		in, out := r.Total.InputTokens, r.Total.OutputTokens
		charged += in + out
		fail := func(what string) {
			t.Errorf("seed %d: %s: %s (%s), %d in, %d out, estimated %v; server %+v, client %+v", client.seed, what, r.State, r.Reason, in, out, r.Estimated, server, client)
		}
		if (r.State == events.StateSettled) != (r.Reason == "") || r.HeldMilliUnits != 0 {
			fail("state")
		}
		switch {
		case client.whole && story.cutAt < 0: // nobody cut anything
			if r.State != events.StateSettled {
				fail("not settled")
			}
			if server.usage == r.Estimated && server.words > 0 {
				fail("estimated or not")
			}
			if want := int64(100 + client.seed%7); server.usage && (in != want || out != server.words) || !server.usage && (in != promptTokens || out != server.words) {
				fail("figures")
			}
		case !r.Estimated && in > 0: // by the server's own usage
			if want := int64(100 + client.seed%7); !server.usage || in != want || out != server.words {
				fail("not what the server says")
			}
		case !r.Estimated: // nothing
			if out != 0 || client.words != 0 || client.whole == false && !server.cut {
				fail("free")
			}
		default:
			if in != promptTokens || out < client.words || out > server.written {
				fail("estimate out of bounds")
			}
		}
		if r.Estimated {
			estimated++
		} else {
			exact++
		}
	}
	t.Logf("%d exact, %d estimated, %d tokens", exact, estimated, charged)
	w.wantStanding("tokens-60s", charged, 0)
	w.wantStanding("concurrency", 0, 0)
}
