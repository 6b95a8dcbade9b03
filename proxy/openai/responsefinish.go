package openai

import (
	"github.com/tidwall/gjson"

	"tollgate/admission/answer"
	"tollgate/events"
	"tollgate/proxy"
	"tollgate/proxy/jsonbody"
)

// Finish implements proxy.Stream. At a cap, what is open is ended first, then the
// response is told as incomplete for its output tokens. For any other reason it
// has failed. Sequence numbers go on.
func (s *responseStream) Finish(end proxy.End) []byte {
	if s.last {
		return nil
	}
	var out []byte
	cut := end.Capped()
	if cut {
		for i := range s.items {
			if !s.items[i].done {
				out = s.close(out, &s.items[i])
			}
		}
	}
	kind := "response.failed"
	if cut {
		kind = "response.incomplete"
	}
	out = s.event(out, kind)
	out = append(append(out, `,"response":`...), s.final(end, cut)...)
	out = append(out, `,"tollgate":`...)
	return append(appendEnd(out, end), "}\n\n"...)
}

// event begins an event.
func (s *responseStream) event(out []byte, kind string) []byte {
	s.sequence++
	out = append(append(out, "event: "...), kind...)
	out = append(append(append(out, "\ndata: {\"type\":\""...), kind...), '"')
	return appendInt(out, `,"sequence_number":`, s.sequence)
}

// close ends an item: its texts, their parts, and itself.
func (s *responseStream) close(out []byte, at *item) []byte {
	for i := range at.runs {
		r := &at.runs[i]
		if r.done {
			continue
		}
		out = s.place(s.event(out, r.kind.done), at, r)
		out = append(append(append(out, `,"`...), r.kind.member...), `":"`...)
		out = append(append(out, r.text...), '"')
		if r.kind.part == "output_text" {
			out = append(out, `,"logprobs":[]`...)
		}
		out = append(out, "}\n\n"...)
		if r.kind.partDone == "" {
			continue
		}
		out = s.place(s.event(out, r.kind.partDone), at, r)
		out = r.appendPart(append(out, `,"part":`...))
		out = append(out, "}\n\n"...)
	}
	at.raw = at.incomplete()
	at.done = true
	if at.raw == nil {
		return out
	}
	out = s.event(out, "response.output_item.done")
	out = appendInt(out, `,"output_index":`, at.index)
	out = append(append(out, `,"item":`...), at.raw...)
	return append(out, "}\n\n"...)
}

func (s *responseStream) place(out []byte, at *item, r *run) []byte {
	out = append(append(out, `,"item_id":`...), at.id()...)
	out = appendInt(out, `,"output_index":`, at.index)
	if r.kind.index != "" {
		out = append(append(append(out, `,"`...), r.kind.index...), `":`...)
		out = appendInt(out, "", r.index)
	}
	return out
}

func (r *run) appendPart(out []byte) []byte {
	out = append(append(out, `{"type":"`...), r.kind.part...)
	out = append(append(append(out, `","`...), r.kind.member...), `":"`...)
	out = append(append(out, r.text...), '"')
	if r.kind.part == "output_text" {
		out = append(out, `,"annotations":[],"logprobs":[]`...)
	}
	return append(out, '}')
}

// incomplete is an item with what came of it; nil where it was not kept.
func (i *item) incomplete() []byte {
	root, bad := jsonbody.Parse(i.raw)
	if bad != nil {
		return nil
	}
	var edits []jsonbody.Edit
	set := func(name string, raw []byte) { edits = append(edits, setMember(root, name, raw)) }
	set("status", []byte(`"incomplete"`))
	lists := map[string][]byte{}
	for n := range i.runs {
		r := &i.runs[n]
		if r.kind.part == "" {
			lists[r.kind.list] = append(append([]byte{'"'}, r.text...), '"')
			continue
		}
		list := lists[r.kind.list]
		if list == nil {
			list = []byte{'['}
		} else {
			list[len(list)-1] = ','
		}
		lists[r.kind.list] = append(r.appendPart(list), ']')
	}
	for name, raw := range lists {
		set(name, raw)
	}
	return checked(jsonbody.Splice(i.raw, edits...))
}

// checked is raw, or nil where pieces that came in do not make JSON.
func checked(raw []byte) []byte {
	if !jsonbody.Valid(raw) {
		return nil
	}
	return raw
}

// setMember sets an object's member, the first of that name.
func setMember(root gjson.Result, name string, raw []byte) jsonbody.Edit {
	var there gjson.Result
	root.ForEach(func(key, v gjson.Result) bool {
		if key.Str == name {
			there = v
		}
		return !there.Exists()
	})
	if there.Exists() {
		return jsonbody.Replace(there, raw)
	}
	return jsonbody.Insert(root, name, raw)
}

// final is the response as it ends.
func (s *responseStream) final(end proxy.End, cut bool) []byte {
	frame := s.frame
	root, bad := jsonbody.Parse(frame)
	if bad != nil || !root.Get("id").Exists() {
		frame = answer.AppendString([]byte(`{"id":"resp_tollgate","object":"response","created_at":0,"error":null,"instructions":null,"metadata":{},"model":`), s.asked)
		frame = append(frame, `,"parallel_tool_calls":true,"temperature":null,"tool_choice":"auto","tools":[],"top_p":null}`...)
		root, _ = jsonbody.Parse(frame)
	}
	edits := make([]jsonbody.Edit, 0, 8)
	set := func(name string, raw []byte) { edits = append(edits, setMember(root, name, raw)) }
	if cut {
		set("status", []byte(`"incomplete"`))
		set("incomplete_details", []byte(`{"reason":"max_output_tokens"}`))
	} else {
		set("status", []byte(`"failed"`))
		e := answer.AppendString([]byte(`{"code":"server_error","message":`), end.Detail)
		set("error", append(e, '}'))
	}
	output := []byte{'['}
	for i := range s.items {
		raw := s.items[i].raw
		if !s.items[i].done {
			raw = s.items[i].incomplete()
		}
		if raw == nil || !jsonbody.Valid(raw) {
			continue
		}
		if len(output) > 1 {
			output = append(output, ',')
		}
		output = append(output, raw...)
	}
	set("output", append(output, ']'))
	set("usage", appendResponseUsage(nil, &end.Usage))
	return jsonbody.Splice(frame, edits...)
}

// appendResponseUsage writes usage as responses give it.
func appendResponseUsage(out []byte, u *events.Usage) []byte {
	out = appendInt(out, `{"input_tokens":`, u.InputTokens)
	out = appendInt(out, `,"input_tokens_details":{"cached_tokens":`, u.CachedInputTokens)
	out = appendInt(out, `},"output_tokens":`, u.OutputTokens)
	out = appendInt(out, `,"output_tokens_details":{"reasoning_tokens":`, u.ReasoningTokens)
	out = appendInt(out, `},"total_tokens":`, u.InputTokens+u.OutputTokens)
	return append(out, '}')
}
