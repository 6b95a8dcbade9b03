package jsonbody_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/tidwall/gjson"
	"pgregory.net/rapid"

	"tollgate/proxy/jsonbody"
)

func TestParseRefusesWhatCannotBeReadInOneWay(t *testing.T) {
	for name, body := range map[string]string{
		"nothing":       ``,
		"no object":     `[{"model":"a"}]`,
		"two values":    `{} {}`,
		"cut":           `{"model":"a"`,
		"trailing rest": `{"model":"a"}x`,
		"comma":         `{"model":"a",}`,
		"control byte":  "{\"model\":\"a\x01\"}",
		"too deep":      `{"a":` + strings.Repeat("[", 128) + strings.Repeat("]", 128) + `}`,
		"abyss":         strings.Repeat(`{"a":`, 1<<20),
	} {
		if _, err := jsonbody.Parse([]byte(body)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	for name, body := range map[string]string{
		"empty object":      ` {} `,
		"127 levels":        `{"a":` + strings.Repeat("[", 127) + strings.Repeat("]", 127) + `}`,
		"brackets in texts": `{"a":"` + strings.Repeat("[", 1000) + `\"` + strings.Repeat("{", 1000) + `"}`,
	} {
		if _, err := jsonbody.Parse([]byte(body)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPickRefusesTwoReadings(t *testing.T) {
	names := []string{"model", "stream", "max_tokens"}
	for name, tt := range map[string]struct{ body, field string }{
		"twice":                {`{"model":"cheap","model":"dear"}`, "model"},
		"twice, once escaped":  {`{"model":"cheap","mod\u0065l":"dear"}`, "model"},
		"another case":         {`{"Model":"dear"}`, "model"},
		"both cases":           {`{"model":"cheap","MODEL":"dear"}`, "model"},
		"a letter that folds":  {`{"\u017ftream":true}`, "stream"},
		"the sign of kelvin":   {`{"max_to` + "\u212a" + `ens":1}`, "max_tokens"},
		"escaped another case": {`{"\u004dodel":"dear"}`, "model"},
	} {
		root, err := jsonbody.Parse([]byte(tt.body))
		if err != nil {
			t.Fatal(name, err)
		}
		err = jsonbody.Pick(root, "", names, make([]gjson.Result, len(names)))
		if err == nil || err.Field != tt.field {
			t.Errorf("%s: got %v, want a refusal of %s", name, err, tt.field)
		}
	}

	root, bad := jsonbody.Parse([]byte(` {"other":1, "other":2, "mod\u0065l" : "x", "Modell":3, "nested":{"model":1}}`))
	if bad != nil {
		t.Fatal(bad)
	}
	found := make([]gjson.Result, 3)
	if bad := jsonbody.Pick(root, "", names, found); bad != nil {
		t.Fatal(bad)
	}
	if found[0].Str != "x" || found[1].Exists() || found[2].Exists() {
		t.Errorf("found %v", found)
	}
}

func TestCount(t *testing.T) {
	for raw, want := range map[string]int64{
		"0": 0, "7": 7, "4503599627370496": 1 << 52,
		"4503599627370497": -1, "-1": -1, "1.5": -1, "1.0": -1, "1e3": -1, "": -1, `"1"`: -1, "null": -1, "01": -1,
		"99999999999999999999": -1,
	} {
		if n, ok := jsonbody.Count(raw); ok != (want >= 0) || (ok && n != want) {
			t.Errorf("%s: %d %v, want %d", raw, n, ok, want)
		}
	}
}

// What is spliced reads as before but for what was changed, and each byte
// outside the edits is as it was.
func TestSpliceKeepsAllOtherBytes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		space := rapid.StringMatching(`[ \t\r\n]{0,3}`)
		member := rapid.SampledFrom([]string{
			`"é\u00e9\n"`, `-1.50e+3`, `[1 , {"model":"inner"}]`, `{ "a" : null }`, `12345678901234567890123`, `"\ud800"`, `true`,
		})
		var before, after strings.Builder
		for _, b := range []*strings.Builder{&before, &after} {
			for i := range 3 {
				b.WriteString(space.Draw(t, "space") + `"k` + string(rune('0'+i)) + `"` + space.Draw(t, "space") + ":" + member.Draw(t, "member") + space.Draw(t, "space"))
				if i < 2 {
					b.WriteByte(',')
				}
			}
		}
		body := []byte("{" + before.String() + `,"model":"old",` + after.String() + "}")
		root, bad := jsonbody.Parse(body)
		if bad != nil {
			t.Fatalf("%s: %v", body, bad)
		}
		found := make([]gjson.Result, 1)
		if bad := jsonbody.Pick(root, "", []string{"model"}, found); bad != nil {
			t.Fatal(bad)
		}
		kept := bytes.Clone(body)
		got := jsonbody.Splice(body, jsonbody.Replace(found[0], []byte(`"new"`)), jsonbody.Insert(root, "cap", []byte("9")))
		want := `{"cap":9,` + before.String() + `,"model":"new",` + after.String() + "}"
		if string(got) != want || !bytes.Equal(kept, body) {
			t.Fatalf("got  %s\nwant %s", got, want)
		}
	})
	root, _ := jsonbody.Parse([]byte(" { } "))
	if got := jsonbody.Splice([]byte(" { } "), jsonbody.Insert(root, "a", []byte("1"))); string(got) != ` {"a":1 } ` {
		t.Errorf("into an empty object: %s", got)
	}
}

func TestWalk(t *testing.T) {
	for in, want := range map[string]string{
		`{}`:         "",
		` [ ] `:      "",
		`{"a":1}`:    "a=1;",
		`[1,"x",{}]`: `=1;="x";={};`,
		` { "a\"b" : [1,"]",{"c":"}"}] , "d":null, "e" : "\\" } `: `a\"b=[1,"]",{"c":"}"}];d=null;e="\\";`,
	} {
		w, got := jsonbody.Over([]byte(in)), ""
		for {
			key, value, ok := w.Next()
			if !ok {
				break
			}
			got += string(key) + "=" + string(value) + ";"
		}
		if got != want || !w.Whole() {
			t.Errorf("%s: got %s, whole %v; want %s", in, got, w.Whole(), want)
		}
		if _, _, ok := w.Next(); ok || !w.Whole() {
			t.Errorf("%s: asked again, it goes on", in)
		}
	}
	for _, in := range []string{``, `1`, `"a"`, `{`, `[`, `{"a"`, `{"a":`, `{"a":1`, `{"a":1]`, `{"a":1}}`, `{"a":1} x`, `{"a" 1}`, `[1 2]`, `{"a":"\"}`, `{a:1}`, `{"a":[1}`, `[1,]`, `{"a":1,}`} {
		w := jsonbody.Over([]byte(in))
		for {
			if _, _, ok := w.Next(); !ok {
				break
			}
		}
		if w.Whole() {
			t.Errorf("%q is taken for whole", in)
		}
	}
}

func FuzzWalk(f *testing.F) {
	for _, seed := range []string{`{"a":[1,{"b":"\u00e9\n"}]}`, `[{},[],"",1e9]`, `{"a":"\ud83d\ude00\ud83d"}`, `{"a"`, `{"":null,"":1}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		w, members := jsonbody.Over(data), 0
		for {
			if _, _, ok := w.Next(); !ok {
				break
			}
			members++
		}
		if gjson.ValidBytes(data) && jsonbody.Valid(data) {
			root := gjson.ParseBytes(data)
			if root.IsObject() || root.IsArray() {
				n := 0
				root.ForEach(func(_, _ gjson.Result) bool { n++; return true })
				if n != members || !w.Whole() {
					t.Fatalf("%s has %d members, the walk saw %d (whole: %v)", data, n, members, w.Whole())
				}
			}
		}
	})
}
