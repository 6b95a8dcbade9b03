package proxy_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"tollgate/events"
	"tollgate/proxy"
)

// The rules, a line each: what is known of the ending, and what is charged.
func TestJudge(t *testing.T) {
	t.Parallel()
	const prompt = 13
	said := &events.Usage{InputTokens: 12, OutputTokens: 33, CachedInputTokens: 4, ReasoningTokens: 5}
	zero := &events.Usage{}
	delivered := events.Usage{OutputTokens: 30, ReasoningTokens: 6, ToolCalls: 1}
	exact := events.Usage{InputTokens: 12, OutputTokens: 33, CachedInputTokens: 4, ReasoningTokens: 5}
	exactTool := exact
	exactTool.ToolCalls = 1
	own := events.Usage{InputTokens: prompt, OutputTokens: 30, ReasoningTokens: 6, ToolCalls: 1}
	promptOnly := events.Usage{InputTokens: prompt}

	type T = proxy.Tally
	settled := func(u events.Usage, estimated bool) proxy.Charged {
		return proxy.Charged{Verb: proxy.Settle, Usage: u, Estimated: estimated}
	}
	cancelled := func(u events.Usage, estimated bool, reason string) proxy.Charged {
		return proxy.Charged{Verb: proxy.Cancel, Usage: u, Estimated: estimated, Reason: reason}
	}
	for _, c := range []struct {
		name  string
		phase proxy.Phase
		cause proxy.Cause
		tally proxy.Tally
		want  proxy.Charged
	}{
		{"complete, with usage", proxy.PhaseAnswered, proxy.CauseUpstreamEnd, T{Usage: said, Delivered: delivered, Content: true, Complete: true}, settled(exactTool, false)},
		{"complete, no usage", proxy.PhaseAnswered, proxy.CauseUpstreamEnd, T{Delivered: delivered, Content: true, Complete: true}, settled(own, true)},
		{"complete, zeros though content came", proxy.PhaseAnswered, proxy.CauseUpstreamEnd, T{Usage: zero, Delivered: delivered, Content: true, Complete: true}, settled(own, true)},
		{"complete and empty, zeros", proxy.PhaseAnswered, proxy.CauseUpstreamEnd, T{Usage: zero, Complete: true}, settled(events.Usage{}, false)},
		{"complete and empty, no usage", proxy.PhaseAnswered, proxy.CauseUpstreamEnd, T{Complete: true}, settled(promptOnly, true)},
		{"complete, garbage usage", proxy.PhaseAnswered, proxy.CauseUpstreamEnd, T{Usage: &events.Usage{InputTokens: 1, OutputTokens: -3}, Delivered: delivered, Content: true, Complete: true}, settled(own, true)},
		{"complete, absurd usage", proxy.PhaseAnswered, proxy.CauseUpstreamEnd, T{Usage: &events.Usage{InputTokens: 1, OutputTokens: 1 << 53}, Delivered: delivered, Content: true, Complete: true}, settled(own, true)},
		{"complete, output said but no input", proxy.PhaseAnswered, proxy.CauseUpstreamEnd, T{Usage: &events.Usage{OutputTokens: 33}, Content: true, Complete: true}, settled(events.Usage{InputTokens: prompt, OutputTokens: 33}, true)},
		{"complete, input said but no output", proxy.PhaseAnswered, proxy.CauseUpstreamEnd, T{Usage: &events.Usage{InputTokens: 12}, Delivered: delivered, Content: true, Complete: true}, settled(events.Usage{InputTokens: 12, OutputTokens: 30, ReasoningTokens: 6, ToolCalls: 1}, true)},
		{"embeddings", proxy.PhaseAnswered, proxy.CauseUpstreamEnd, T{Usage: &events.Usage{InputTokens: 12}, Content: true, Complete: true}, settled(events.Usage{InputTokens: 12}, false)},
		{"transcription billed by its length", proxy.PhaseAnswered, proxy.CauseUpstreamEnd, T{Usage: &events.Usage{AudioMillis: 7000}, Delivered: delivered, Content: true, Complete: true}, settled(events.Usage{AudioMillis: 7000, ToolCalls: 1}, false)},
		{"images without usage", proxy.PhaseAnswered, proxy.CauseUpstreamEnd, T{Delivered: events.Usage{Images: 2}, Content: true, Complete: true}, settled(events.Usage{InputTokens: prompt, Images: 2}, true)},
		{"images that are said, and no tokens", proxy.PhaseAnswered, proxy.CauseUpstreamEnd, T{Usage: &events.Usage{Images: 2}, Delivered: events.Usage{Images: 1}, Content: true, Complete: true}, settled(events.Usage{Images: 2}, false)},
		{"GPU time and zeros, content came", proxy.PhaseAnswered, proxy.CauseUpstreamEnd, T{Usage: &events.Usage{GPUMillis: 9}, Delivered: delivered, Content: true, Complete: true}, settled(events.Usage{InputTokens: prompt, OutputTokens: 30, ReasoningTokens: 6, ToolCalls: 1, GPUMillis: 9}, true)},

		{"nothing was sent", proxy.PhaseReserved, proxy.CauseUpstreamGone, T{}, cancelled(events.Usage{}, false, proxy.ReasonNotSent)},
		{"client left before it was sent", proxy.PhaseReserved, proxy.CauseClientGone, T{}, cancelled(events.Usage{}, false, proxy.ReasonClientGone)},
		{"refused", proxy.PhaseRefused, proxy.CauseUpstreamGone, T{}, cancelled(events.Usage{}, false, proxy.ReasonUpstreamRefused)},
		{"refused, in order", proxy.PhaseRefused, proxy.CauseUpstreamEnd, T{}, cancelled(events.Usage{}, false, proxy.ReasonUpstreamRefused)},
		{"refused, but it used something", proxy.PhaseRefused, proxy.CauseUpstreamEnd, T{Usage: &events.Usage{InputTokens: 12}}, cancelled(events.Usage{InputTokens: 12}, false, proxy.ReasonUpstreamRefused)},
		{"hung before an answer", proxy.PhaseSent, proxy.CauseUpstreamGone, T{}, cancelled(events.Usage{}, false, proxy.ReasonUpstreamFailed)},
		{"200 and nothing", proxy.PhaseAnswered, proxy.CauseUpstreamGone, T{}, cancelled(events.Usage{}, false, proxy.ReasonUpstreamBrokeOff)},
		{"200 and an error event", proxy.PhaseAnswered, proxy.CauseUpstreamEnd, T{Failed: true}, cancelled(events.Usage{}, false, proxy.ReasonUpstreamFailed)},
		{"200 and garbage", proxy.PhaseAnswered, proxy.CauseUpstreamEnd, T{Garbage: true}, cancelled(events.Usage{}, false, proxy.ReasonUpstreamGarbage)},
		{"broke off after content", proxy.PhaseAnswered, proxy.CauseUpstreamGone, T{Delivered: delivered, Content: true}, cancelled(own, true, proxy.ReasonUpstreamBrokeOff)},
		{"ended without an end", proxy.PhaseAnswered, proxy.CauseUpstreamEnd, T{Delivered: delivered, Content: true}, cancelled(own, true, proxy.ReasonUpstreamBrokeOff)},
		{"broke off after usage", proxy.PhaseAnswered, proxy.CauseUpstreamGone, T{Usage: said, Content: true}, cancelled(exact, false, proxy.ReasonUpstreamBrokeOff)},
		{"error event after content", proxy.PhaseAnswered, proxy.CauseUpstreamEnd, T{Delivered: delivered, Content: true, Failed: true}, cancelled(own, true, proxy.ReasonUpstreamFailed)},

		{"client left while the upstream thought", proxy.PhaseSent, proxy.CauseClientGone, T{}, cancelled(promptOnly, true, proxy.ReasonClientGone)},
		{"client left a stream", proxy.PhaseAnswered, proxy.CauseClientGone, T{Delivered: delivered, Content: true}, cancelled(own, true, proxy.ReasonClientGone)},
		{"client left, the upstream said usage", proxy.PhaseAnswered, proxy.CauseClientGone, T{Usage: said, Delivered: delivered, Content: true}, cancelled(exactTool, false, proxy.ReasonClientGone)},
		{"client left a stream whose usage was said first", proxy.PhaseAnswered, proxy.CauseClientGone, T{Usage: &events.Usage{InputTokens: 12, OutputTokens: 1}, OutputUnsaid: true, Delivered: delivered, Content: true}, cancelled(events.Usage{InputTokens: 12, OutputTokens: 30, ReasoningTokens: 6, ToolCalls: 1}, true, proxy.ReasonClientGone)},
		{"client left at once, usage was said first", proxy.PhaseAnswered, proxy.CauseClientGone, T{Usage: &events.Usage{InputTokens: 12, OutputTokens: 1}, OutputUnsaid: true}, cancelled(events.Usage{InputTokens: 12, OutputTokens: 1}, false, proxy.ReasonClientGone)},
		{"client left after an error event", proxy.PhaseAnswered, proxy.CauseClientGone, T{Failed: true}, cancelled(events.Usage{}, false, proxy.ReasonClientGone)},
		{"cut at a cap", proxy.PhaseAnswered, proxy.CauseCut, T{Delivered: delivered, Content: true}, cancelled(own, true, proxy.ReasonCut)},
		{"cut by the shutdown while the upstream thought", proxy.PhaseSent, proxy.CauseCut, T{}, cancelled(promptOnly, true, proxy.ReasonCut)},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got := proxy.Judge(proxy.Ending{Phase: c.phase, Cause: c.cause, Tally: c.tally, InputTokens: prompt})
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// M2: a stream that the client cut after some chunks, without a usage chunk.
func TestCaseM2_CutStreamIsChargedAsDelivered(t *testing.T) {
	t.Parallel()
	got := proxy.Judge(proxy.Ending{
		Phase: proxy.PhaseAnswered, Cause: proxy.CauseClientGone, InputTokens: 13,
		Tally: proxy.Tally{Content: true, Delivered: events.Usage{OutputTokens: 7}},
	})
	want := proxy.Charged{
		Verb: proxy.Cancel, Reason: proxy.ReasonClientGone, Estimated: true,
		Usage: events.Usage{InputTokens: 13, OutputTokens: 7},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// M3: a cancel for which the provider says 0/0/0.
func TestCaseM3_CancelWithZerosIsFree(t *testing.T) {
	t.Parallel()
	for _, cause := range []proxy.Cause{proxy.CauseClientGone, proxy.CauseCut, proxy.CauseUpstreamGone} {
		got := proxy.Judge(proxy.Ending{
			Phase: proxy.PhaseAnswered, Cause: cause, InputTokens: 13,
			Tally: proxy.Tally{Usage: &events.Usage{}},
		})
		if got.Verb != proxy.Cancel || got.Usage != (events.Usage{}) || got.Estimated {
			t.Errorf("cause %d: %+v", cause, got)
		}
	}
}

// M4: a stream that ends in order and says nothing of usage.
func TestCaseM4_NoUsageIsOwnCount(t *testing.T) {
	t.Parallel()
	for _, said := range []*events.Usage{nil, {}} {
		got := proxy.Judge(proxy.Ending{
			Phase: proxy.PhaseAnswered, Cause: proxy.CauseUpstreamEnd, InputTokens: 13,
			Tally: proxy.Tally{Usage: said, Content: true, Complete: true, Delivered: events.Usage{OutputTokens: 33}},
		})
		want := proxy.Charged{Verb: proxy.Settle, Estimated: true, Usage: events.Usage{InputTokens: 13, OutputTokens: 33}}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("said %v: %s", said, diff)
		}
	}
}

// What must hold of every ending there is, by every combination of what decides.
func TestJudgeEveryEnding(t *testing.T) {
	t.Parallel()
	reports := []*events.Usage{
		nil,
		{},
		{InputTokens: 11, OutputTokens: 22, CachedInputTokens: 3, ReasoningTokens: 4},
		{InputTokens: 11},
		{OutputTokens: 22},
		{InputTokens: -1, OutputTokens: 22},
		{InputTokens: 11, OutputTokens: proxy.MaxFigure + 1},
		{GPUMillis: 5},
		{AudioMillis: 6},
		{Images: 2},
		{InputTokens: 11, OutputTokens: 22, CachedInputTokens: 99, ReasoningTokens: 99},
		{ToolCalls: 3},
	}
	deliveries := []events.Usage{{}, {OutputTokens: 30, ReasoningTokens: 7, ToolCalls: 1, Images: 1, AudioMillis: 100}, {OutputTokens: -5, ReasoningTokens: 9}}
	bools := []bool{false, true}
	n := 0
	for phase := proxy.PhaseReserved; phase <= proxy.PhaseAnswered; phase++ {
		for cause := proxy.CauseUpstreamEnd; cause <= proxy.CauseCut; cause++ {
			for _, report := range reports {
				for _, delivered := range deliveries {
					for _, content := range bools {
						for flags := range 16 {
							for _, input := range []int64{0, 13, -13} {
								e := proxy.Ending{Phase: phase, Cause: cause, InputTokens: input, AudioMillis: 50, Tally: proxy.Tally{
									Usage: report, Delivered: delivered, Content: content,
									Complete: flags&1 != 0, Failed: flags&2 != 0, Garbage: flags&4 != 0, OutputUnsaid: flags&8 != 0,
								}}
								checkCharged(t, e, proxy.Judge(e))
								n++
							}
						}
					}
				}
			}
		}
	}
	if n < 50_000 {
		t.Errorf("only %d endings", n)
	}
}

func TestJudgeProperties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		usage := func(name string) events.Usage {
			n := rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(0, 1000), rapid.Int64())
			return events.Usage{
				InputTokens: n.Draw(t, name), OutputTokens: n.Draw(t, name), CachedInputTokens: n.Draw(t, name), ReasoningTokens: n.Draw(t, name),
				ToolCalls: n.Draw(t, name), Images: n.Draw(t, name), AudioMillis: n.Draw(t, name), GPUMillis: n.Draw(t, name),
			}
		}
		b := func(name string) bool { return rapid.Bool().Draw(t, name) }
		e := proxy.Ending{
			Phase: proxy.Phase(rapid.IntRange(0, 3).Draw(t, "phase")), Cause: proxy.Cause(rapid.IntRange(0, 3).Draw(t, "cause")),
			InputTokens: rapid.Int64().Draw(t, "input"), AudioMillis: rapid.Int64().Draw(t, "audio"),
			Tally: proxy.Tally{
				Delivered: usage("delivered"), Content: b("content"), Complete: b("complete"),
				Failed: b("failed"), Garbage: b("garbage"), OutputUnsaid: b("unsaid"),
			},
		}
		if b("says usage") {
			u := usage("said")
			e.Tally.Usage = &u
		}
		checkCharged(t, e, proxy.Judge(e))
	})
}

// checkCharged holds what is charged against what was seen, by rules other than
// those that Judge goes by.
func checkCharged(t interface{ Fatalf(string, ...any) }, e proxy.Ending, got proxy.Charged) {
	fail := func(what string) { t.Fatalf("%s: %+v (said %+v) gives %+v", what, e, e.Tally.Usage, got) }
	u, d := got.Usage, e.Tally.Delivered

	answered := e.Phase == proxy.PhaseAnswered && e.Cause == proxy.CauseUpstreamEnd && e.Tally.Complete && !e.Tally.Failed && !e.Tally.Garbage
	if (got.Verb == proxy.Settle) != answered {
		fail("settled if and only if answered")
	}
	if (got.Reason == "") != (got.Verb == proxy.Settle) {
		fail("a cancel has a reason and a settlement none")
	}
	if checked, ok := proxy.CheckUsage(u); !ok || checked != u {
		fail("figures in their range, parts within the whole")
	}
	said, ok := events.Usage{}, false
	if e.Tally.Usage != nil {
		said, ok = proxy.CheckUsage(*e.Tally.Usage)
	}
	if e.Phase == proxy.PhaseReserved && (u != (events.Usage{}) || got.Estimated) {
		fail("what was not sent is free")
	}
	if e.Phase == proxy.PhaseReserved {
		return
	}
	ownInput, ownOutput := max(e.InputTokens, 0), max(d.OutputTokens, 0)
	if u.InputTokens > max(said.InputTokens, ownInput) || u.OutputTokens > max(said.OutputTokens, ownOutput) {
		fail("no more than was said or counted")
	}
	if u.Images > max(said.Images, d.Images, 0) || u.ToolCalls > max(said.ToolCalls, d.ToolCalls, 0) || u.GPUMillis != said.GPUMillis {
		fail("no more than was said or seen")
	}
	if !got.Estimated && (u.InputTokens != said.InputTokens || u.OutputTokens != said.OutputTokens) {
		fail("what is not marked is what was said")
	}
	if ok && said.InputTokens > 0 && said.OutputTokens > 0 && !e.Tally.OutputUnsaid {
		if u.InputTokens != said.InputTokens || u.OutputTokens != said.OutputTokens || u.CachedInputTokens != said.CachedInputTokens || got.Estimated {
			fail("a whole report is charged as it is")
		}
	}
	byTokens := said.AudioMillis == 0 && said.Images == 0 || said.InputTokens > 0 || said.OutputTokens > 0
	if e.Tally.Content && e.Phase != proxy.PhaseRefused && byTokens && ownOutput > 0 && u.OutputTokens == 0 {
		fail("what was delivered is not free")
	}
	own := e.Cause == proxy.CauseUpstreamGone || e.Phase == proxy.PhaseRefused || e.Tally.Failed
	if !ok && !e.Tally.Content && own && u != (events.Usage{}) {
		fail("an upstream's own failure is free")
	}
	left := e.Cause == proxy.CauseClientGone || e.Cause == proxy.CauseCut
	if !ok && left && e.Phase != proxy.PhaseRefused && !e.Tally.Failed && !e.Tally.Garbage && ownInput > 0 && u.InputTokens == 0 {
		fail("leaving is not free")
	}
}
