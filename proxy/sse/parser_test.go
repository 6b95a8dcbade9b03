package sse_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"tollgate/proxy/sse"
)

// field is what a reader of a stream sees of an event.
type field struct {
	Name, Data string
	HasData    bool
}

// read is the standard's algorithm, line by line over the whole stream, with one
// difference: an event that the end of the stream cuts short counts.
func read(stream string) []field {
	stream = strings.TrimPrefix(stream, "\uFEFF")
	stream = strings.ReplaceAll(stream, "\r\n", "\n")
	stream = strings.ReplaceAll(stream, "\r", "\n")
	var events []field
	var name string
	var data []string
	dispatch := func() {
		if name != "" || data != nil {
			events = append(events, field{name, strings.Join(data, "\n"), data != nil})
		}
		name, data = "", nil
	}
	for line := range strings.SplitSeq(stream, "\n") {
		key, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case line == "":
			dispatch()
		case key == "event":
			name = value
		case key == "data":
			data = append(data, value)
		}
	}
	dispatch()
	return events
}

// got is what a parser gives for a stream.
type got struct {
	raw    bytes.Buffer
	events []sse.Event // copies, without the pieces of what was read whole later
	fields []field
}

func (g *got) take(ev sse.Event) error {
	g.raw.Write(ev.Raw)
	ev.Raw, ev.Name, ev.Data = bytes.Clone(ev.Raw), bytes.Clone(ev.Name), bytes.Clone(ev.Data)
	g.events = append(g.events, ev)
	if ev.HasData || len(ev.Name) > 0 {
		g.fields = append(g.fields, field{string(ev.Name), string(ev.Data), ev.HasData})
	}
	return nil
}

// parse feeds the stream in chunks that end at cuts, each in memory of its own
// that is overwritten afterwards.
func parse(t interface{ Fatal(...any) }, p *sse.Parser, stream []byte, cuts ...int) *got {
	g := &got{}
	from := 0
	for _, cut := range append(cuts, len(stream)) {
		chunk := bytes.Clone(stream[from:cut])
		if err := p.Feed(chunk, g.take); err != nil {
			t.Fatal(err)
		}
		for i := range chunk {
			chunk[i] = '#'
		}
		from = cut
	}
	if err := p.End(g.take); err != nil {
		t.Fatal(err)
	}
	return g
}

func TestParse(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		stream string
		raws   []string // of the stream in one chunk
		want   []field
	}{
		"empty":                {"", nil, nil},
		"one":                  {"data: x\n\n", []string{"data: x\n\n"}, []field{{"", "x", true}}},
		"no space":             {"data:x\n\n", []string{"data:x\n\n"}, []field{{"", "x", true}}},
		"two spaces":           {"data:  x\n\n", []string{"data:  x\n\n"}, []field{{"", " x", true}}},
		"no colon":             {"data\n\n", []string{"data\n\n"}, []field{{"", "", true}}},
		"no colon twice":       {"data\ndata\n\n", []string{"data\ndata\n\n"}, []field{{"", "\n", true}}},
		"many lines":           {"data: a\ndata: b\ndata:\n\n", []string{"data: a\ndata: b\ndata:\n\n"}, []field{{"", "a\nb\n", true}}},
		"named":                {"event: e\ndata: x\nid: 7\nretry: 9\nother\n\n", []string{"event: e\ndata: x\nid: 7\nretry: 9\nother\n\n"}, []field{{"e", "x", true}}},
		"name alone":           {"event: e\n\n", []string{"event: e\n\n"}, []field{{"e", "", false}}},
		"last name counts":     {"event: a\nevent: b\ndata: x\n\n", []string{"event: a\nevent: b\ndata: x\n\n"}, []field{{"b", "x", true}}},
		"name is exact":        {"Data: x\n data: y\ndatas: z\n\n", []string{"Data: x\n data: y\ndatas: z\n\n"}, nil},
		"CRLF":                 {"data: x\r\n\r\ndata: y\r\n\r\n", []string{"data: x\r\n\r\n", "data: y\r\n\r\n"}, []field{{"", "x", true}, {"", "y", true}}},
		"CR":                   {"data: x\r\rdata: y\r\r", []string{"data: x\r\r", "data: y\r\r"}, []field{{"", "x", true}, {"", "y", true}}},
		"CRLF inside":          {"event: e\r\ndata: x\r\n: c\r\ndata: y\r\n\r\n", []string{"event: e\r\ndata: x\r\n: c\r\ndata: y\r\n\r\n"}, []field{{"e", "x\ny", true}}},
		"mixed line ends":      {"data: x\r\n\ndata: y\n\r\ndata: z\r\n\r", []string{"data: x\r\n\n", "data: y\n\r\n", "data: z\r\n\r"}, []field{{"", "x", true}, {"", "y", true}, {"", "z", true}}},
		"LF then CR":           {"data: x\n\rdata: y\n\n", []string{"data: x\n\r", "data: y\n\n"}, []field{{"", "x", true}, {"", "y", true}}},
		"comment":              {": ping\n\ndata: x\n\n", []string{": ping\n\n", "data: x\n\n"}, []field{{"", "x", true}}},
		"comment inside":       {"data: x\n: ping\ndata: y\n\n", []string{"data: x\n: ping\ndata: y\n\n"}, []field{{"", "x\ny", true}}},
		"comment and no end":   {": ping\n", []string{": ping\n"}, nil},
		"empty lines":          {"\n\n\r\n", []string{"\n", "\n", "\r\n"}, nil},
		"BOM":                  {"\uFEFFdata: x\n\n\uFEFFdata: y\n\n", []string{"\uFEFFdata: x\n\n", "\uFEFFdata: y\n\n"}, []field{{"", "x", true}}},
		"BOM alone in a line":  {"\uFEFF\ndata: x\n\n", []string{"\uFEFF\n", "data: x\n\n"}, []field{{"", "x", true}}},
		"BOM and comment":      {"\uFEFF: c\n\ndata: x\n\n", []string{"\uFEFF: c\n\n", "data: x\n\n"}, []field{{"", "x", true}}},
		"no last empty line":   {"data: x\n\ndata: [DONE]\n", []string{"data: x\n\n", "data: [DONE]\n"}, []field{{"", "x", true}, {"", "[DONE]", true}}},
		"no last line end":     {"data: x\n\ndata: [DONE]", []string{"data: x\n\n", "data: [DONE]"}, []field{{"", "x", true}, {"", "[DONE]", true}}},
		"ends with CR":         {"data: [DONE]\r", []string{"data: [DONE]\r"}, []field{{"", "[DONE]", true}}},
		"colons in the value":  {"data: a:b: c\n\n", []string{"data: a:b: c\n\n"}, []field{{"", "a:b: c", true}}},
		"no field name":        {":\n:x\n\n", []string{":\n:x\n\n"}, nil},
		"bytes that are wrong": {"data: \xff\x00\n\n", []string{"data: \xff\x00\n\n"}, []field{{"", "\xff\x00", true}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := parse(t, sse.New(0), []byte(c.stream))
			var raws []string
			for _, ev := range g.events {
				raws = append(raws, string(ev.Raw))
			}
			if diff := cmp.Diff(c.raws, raws); diff != "" {
				t.Error("raws:", diff)
			}
			if diff := cmp.Diff(c.want, g.fields); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(c.want, read(c.stream)); diff != "" {
				t.Error("the reference:", diff)
			}
			for cut := range len(c.stream) { // each cut in two, and byte for byte
				if g := parse(t, sse.New(0), []byte(c.stream), cut); !slices.Equal(g.fields, c.want) || g.raw.String() != c.stream {
					t.Errorf("cut at %d: %v, %q", cut, g.fields, g.raw.String())
				}
			}
			every := make([]int, len(c.stream))
			for i := range every {
				every[i] = i
			}
			if g := parse(t, sse.New(0), []byte(c.stream), every...); !slices.Equal(g.fields, c.want) || g.raw.String() != c.stream {
				t.Errorf("byte for byte: %v, %q", g.fields, g.raw.String())
			}
		})
	}
}

var morsels = []string{
	"data", "data:", "data: ", "event: ", "event:e", "id: 1", "retry", ":", ": c", " ", "x", "[DONE]", `{"a":1}`, "ü", "\uFEFF", "\xEF", "\xBB", "\x00",
	"\n", "\n\n", "\r", "\r\n", "\r\n\r\n", "\r\r", "\n\r", "data: x\n\n", ": ping\n\n", "event: e\ndata: y\n\n",
}

func genStream(t *rapid.T, of []string) []byte {
	return []byte(strings.Join(rapid.SliceOfN(rapid.SampledFrom(of), 0, 60).Draw(t, "stream"), ""))
}

func genCuts(t *rapid.T, n int) []int {
	cuts := rapid.SliceOfN(rapid.IntRange(0, n), 0, 20).Draw(t, "cuts")
	slices.Sort(cuts)
	return cuts
}

// Whatever the stream and wherever it is cut: the bytes that come out are the
// bytes that went in, and the events are the standard's.
func TestParseIsTheStandards(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		stream := genStream(t, morsels)
		for cut := range stream {
			if g := parse(t, sse.New(0), stream, cut); !slices.Equal(g.fields, read(string(stream))) {
				t.Fatalf("%q cut at %d gives %v", stream, cut, g.fields)
			}
		}
		g := parse(t, sse.New(0), stream, genCuts(t, len(stream))...)
		if g.raw.String() != string(stream) {
			t.Fatalf("%q came out as %q", stream, g.raw.String())
		}
		if diff := cmp.Diff(read(string(stream)), g.fields); diff != "" {
			t.Fatalf("%q: %s", stream, diff)
		}
	})
}

// The same with a bound: what is longer comes out unread, what follows is read
// again, and it does not depend on the cuts.
func TestBound(t *testing.T) {
	t.Parallel()
	// Comments are left out: they may go out before their event, which is shorter
	// then.
	plain := slices.DeleteFunc(slices.Clone(morsels), func(m string) bool { return strings.HasPrefix(m, ":") })
	rapid.Check(t, func(t *rapid.T) {
		stream := genStream(t, plain)
		bound := rapid.IntRange(1, 30).Draw(t, "bound")
		whole := parse(t, sse.New(bound), stream)
		cut := parse(t, sse.New(bound), stream, genCuts(t, len(stream))...)
		for _, g := range []*got{whole, cut} {
			if g.raw.String() != string(stream) {
				t.Fatalf("%q came out as %q", stream, g.raw.String())
			}
		}
		if diff := cmp.Diff(whole.fields, cut.fields); diff != "" {
			t.Fatalf("%q: %s", stream, diff)
		}
		for _, ev := range whole.events {
			size := len(bytes.TrimSuffix(ev.Raw, []byte("\n")))
			if ev.Lost && !ev.Begun && size < bound || !ev.Cut && len(ev.Raw) > bound+1 {
				t.Fatalf("%q with bound %d: %+v", stream, bound, ev)
			}
			if ev.Lost && (!ev.Cut || ev.HasData || ev.Name != nil) {
				t.Fatalf("lost, but read: %+v", ev)
			}
		}
	})
}

// The newline of the line end that an event ended with is no part of its size
// when it comes later, so it is none when it comes with it.
func TestBoundAtLineEnd(t *testing.T) {
	t.Parallel()
	stream := []byte("data: x\r\n\r\n")
	for bound, lost := range map[int]bool{len(stream) - 2: true, len(stream) - 1: false} {
		for _, cut := range []int{0, 3, len(stream) - 1} {
			g := parse(t, sse.New(bound), stream, cut)
			if got := len(g.fields) == 0; got != lost {
				t.Errorf("bound %d, cut at %d: lost %v", bound, cut, got)
			}
		}
	}
}

func TestBeyondBoundGoesOnAndRecovers(t *testing.T) {
	t.Parallel()
	stream := []byte("data: a\n\ndata: " + strings.Repeat("x", 1000) + "\n\ndata: b\n\n")
	p := sse.New(100)
	g := &got{}
	fed := 0
	for chunk := range slices.Chunk(stream, 64) {
		if err := p.Feed(chunk, g.take); err != nil {
			t.Fatal(err)
		}
		fed += len(chunk)
		if held := fed - g.raw.Len(); held > 100 {
			t.Fatalf("%d bytes are held", held)
		}
	}
	if diff := cmp.Diff([]field{{"", "a", true}, {"", "b", true}}, g.fields); diff != "" {
		t.Error(diff)
	}
	if !bytes.Equal(g.raw.Bytes(), stream) {
		t.Error("the stream is not what went in")
	}
	lost := 0
	for i, ev := range g.events {
		if ev.Lost {
			lost++
			if !ev.Begun {
				t.Error("its pieces came out before")
			}
		} else if ev.Cut && ev.Begun != g.events[i-1].Cut {
			t.Errorf("piece %d: %+v", i, ev)
		}
	}
	if lost != 1 {
		t.Errorf("%d events were lost", lost)
	}
}

// An event of 1 MiB is read whole, and goes out while it comes.
func TestLongEventIsNotHeldBack(t *testing.T) {
	t.Parallel()
	body := strings.Repeat("0123456789abcdef", 1<<16)
	stream := []byte("event: long\ndata: " + body + "\n\ndata: x\n\n")
	p := sse.New(0)
	g := &got{}
	fed := 0
	for chunk := range slices.Chunk(stream, 5000) {
		if err := p.Feed(chunk, g.take); err != nil {
			t.Fatal(err)
		}
		fed += len(chunk)
		if held := fed - g.raw.Len(); held > 64<<10 {
			t.Fatalf("%d of %d bytes are held", held, fed)
		} else if fed > 64<<10 && held > 0 {
			t.Fatalf("%d bytes are held after the event began to go out", held)
		}
		if p.Open() != (fed > 64<<10 && fed < len(stream)) {
			t.Fatalf("open %v after %d bytes", p.Open(), fed)
		}
	}
	if !bytes.Equal(g.raw.Bytes(), stream) {
		t.Error("the stream is not what went in")
	}
	if diff := cmp.Diff([]field{{"long", body, true}, {"", "x", true}}, g.fields); diff != "" {
		t.Error(diff[:200])
	}
	if last := g.events[len(g.events)-2]; last.Cut || !last.Begun {
		t.Errorf("cut %v, begun %v", last.Cut, last.Begun)
	}
	if n := p.Buffered(); n > 4<<10 {
		t.Errorf("%d bytes are kept", n)
	}
}

// Whatever a whole event, a comment's line or a half line end completes goes out
// at once.
func TestNothingWaits(t *testing.T) {
	t.Parallel()
	p := sse.New(0)
	g := &got{}
	for _, step := range []struct{ feed, want string }{
		{"data: x\n", ""},
		{"\nda", "data: x\n\n"},
		{"ta: y\r\n\r", "data: y\r\n\r"}, // a reader may take the event now
		{"\n", "\n"},                     // and its second half when it comes
		{": ping", ""},
		{"\n", ": ping\n"},
		{"\n", "\n"},
		{":a\n:b\ndata", ""},
		{"\n\n", ":a\n:b\ndata\n\n"},
	} {
		g.raw.Reset()
		if err := p.Feed([]byte(step.feed), g.take); err != nil {
			t.Fatal(err)
		}
		if got := g.raw.String(); got != step.want {
			t.Errorf("%q gives %q, want %q", step.feed, got, step.want)
		}
	}
	if p.Pending() || p.Open() {
		t.Error("nothing has begun")
	}
}

// The late half of a line end is no part of the next event: who hides that one
// must not keep the half from a reader who waits for it.
func TestLateLineEndIsAlone(t *testing.T) {
	t.Parallel()
	g := parse(t, sse.New(0), []byte("data: x\r\n\r\ndata: y\n\n"), len("data: x\r\n\r"))
	var raws []string
	for _, ev := range g.events {
		raws = append(raws, string(ev.Raw))
	}
	if diff := cmp.Diff([]string{"data: x\r\n\r", "\n", "data: y\n\n"}, raws); diff != "" {
		t.Error(diff)
	}
}

// An event that an error stops is the last.
func TestErrorEnds(t *testing.T) {
	t.Parallel()
	stop := errors.New("stop")
	for _, stream := range []string{"data: a\n\ndata: b\n\n", ": c\n", "\n", "data: " + strings.Repeat("x", 70<<10)} {
		calls := 0
		err := sse.New(0).Feed([]byte(stream), func(sse.Event) error {
			calls++
			return stop
		})
		if !errors.Is(err, stop) || calls != 1 {
			t.Errorf("%.20q: %v after %d calls", stream, err, calls)
		}
	}
	if err := sse.New(0).End(func(sse.Event) error { return stop }); err != nil {
		t.Error("nothing was left, but:", err)
	}
}

// A stream costs no memory an event, whole or cut.
func TestNoAllocations(t *testing.T) {
	chunk := []byte("data: {\"choices\":[{\"delta\":{\"content\":\"Hello\"}}]}\n\nevent: e\ndata: a\ndata: b\n\n: ping\n\n")
	p := sse.New(0)
	n := 0
	each := func(ev sse.Event) error { n += len(ev.Raw); return nil }
	feed := func() {
		if p.Feed(chunk, each) != nil || p.Feed(chunk[:7], each) != nil || p.Feed(chunk[7:60], each) != nil || p.Feed(chunk[60:], each) != nil {
			t.Fatal("error")
		}
	}
	feed()
	if got := testing.AllocsPerRun(100, feed); got > 0 {
		t.Errorf("%v allocations", got)
	}
	if n%len(chunk) != 0 {
		t.Errorf("%d bytes came out", n)
	}
	if held := p.Buffered(); held > 4<<10 {
		t.Errorf("%d bytes are kept", held)
	}
}

func FuzzParser(f *testing.F) {
	for _, m := range morsels {
		f.Add([]byte(m), uint64(1))
	}
	f.Add([]byte("\uFEFFevent: e\r\ndata: a\r\ndata: b\r\n\r\n: c\n\ndata: [DONE]"), uint64(7))
	f.Fuzz(func(t *testing.T, stream []byte, seed uint64) {
		random := rand.New(rand.NewPCG(seed, 0))
		var cuts []int
		for at := random.IntN(9); at < len(stream); at += random.IntN(9) {
			cuts = append(cuts, at)
		}
		g := parse(t, sse.New(0), stream, cuts...)
		if !bytes.Equal(g.raw.Bytes(), stream) {
			t.Fatalf("%q came out as %q", stream, g.raw.String())
		}
		if diff := cmp.Diff(read(string(stream)), g.fields); diff != "" {
			t.Fatal(diff)
		}
		bound := sse.New(1 + int(seed%64))
		if g := parse(t, bound, stream, cuts...); !bytes.Equal(g.raw.Bytes(), stream) {
			t.Fatalf("%q came out as %q", stream, g.raw.String())
		}
	})
}

func BenchmarkFeed(b *testing.B) {
	event := `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}` + "\n\n"
	each := func(sse.Event) error { return nil }
	for name, chunk := range map[string][]byte{"OneEvent": []byte(event), "Hundred": []byte(strings.Repeat(event, 100))} {
		b.Run(name, func(b *testing.B) {
			p := sse.New(0)
			b.SetBytes(int64(len(chunk)))
			b.ReportAllocs()
			for b.Loop() {
				if err := p.Feed(chunk, each); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
