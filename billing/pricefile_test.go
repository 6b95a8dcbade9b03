package billing

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func readFixture(t testing.TB) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "prices.json"))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestReadPriceFile(t *testing.T) {
	t.Parallel()
	file, err := ReadPriceFile(bytes.NewReader(readFixture(t)))
	if err != nil {
		t.Fatal(err)
	}
	var prices, left []string
	for _, p := range file.Prices {
		prices = append(prices, fmt.Sprintf("%s %s %v per %d (%s)", p.Model, p.Meter, p.Amount, p.UnitSize, p.Field))
	}
	for _, l := range file.LeftOut {
		left = append(left, fmt.Sprintf("%d %s %s: %s", l.Line, l.Entry, l.Field, l.Reason))
	}
	wantPrices := []string{
		"listener audio_ms 0.0002833333333333333 per 1000 (input_cost_per_second)",
		"north-hit input_tokens 1 per 1000000 (input_cost_per_token)",
		"north-hit cached_input_tokens 0.1 per 1000000 (cache_read_input_token_cost)",
		"north-hit output_tokens 2 per 1000000 (output_cost_per_token)",
		"north-large input_tokens 2.5 per 1000000 (input_cost_per_token)",
		"north-large cached_input_tokens 0.3 per 1000000 (cache_read_input_token_cost)",
		"north-large output_tokens 10 per 1000000 (output_cost_per_token)",
		"north-large reasoning_tokens 40 per 1000000 (output_cost_per_reasoning_token)",
		"painter images 0.04 per 1 (output_cost_per_image)",
		"ranker input_tokens 0 per 1000000 (input_cost_per_token)",
		"ranker requests 0.002 per 1 (input_cost_per_query)",
	}
	wantLeft := []string{
		"2 sample_spec : the entry explains the file's format and is no model",
		"8 north-large cache_creation_input_token_cost: cache writes are not metered apart from input",
		"11 north-large input_cost_per_token_above_200k_tokens: depends on the size of each request, which hourly usage does not keep",
		"12 north-large input_cost_per_token_batches: a service level, which usage does not carry",
		"18 north-large regional_processing_uplift_multiplier_eu: a multiplier for a region or programme; set a price for that region instead",
		"19 north-large search_context_cost_per_query: this unit is not metered",
		"24 north-hit input_cost_per_token_cache_hit: the same price as cache_read_input_token_cost",
		"29 painter input_cost_per_image: images is already priced by output_cost_per_image",
		"32 painter output_cost_per_pixel: pixels are not metered",
		"37 listener output_cost_per_second: audio_ms is already priced by input_cost_per_second",
		`40 server-by-the-second input_cost_per_second: seconds of mode "chat" are not metered`,
		"44 too-fine input_cost_per_token: more digits than a price can hold (19)",
		"44 too-fine output_cost_per_token: not a number",
		"45 no-price : the entry has no price",
		"46 not-an-entry : the entry is not an object",
	}
	if diff := cmp.Diff(wantPrices, prices); diff != "" {
		t.Errorf("prices (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(wantLeft, left); diff != "" {
		t.Errorf("left out (-want +got):\n%s", diff)
	}
	if file.Entries != 10 || file.Zero != 1 {
		t.Errorf("%d entries, %d zero prices; want 10 and 1", file.Entries, file.Zero)
	}
}

func TestReadPriceFileRefusals(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat("[", 40) + strings.Repeat("]", 40)
	tests := []struct {
		name, file, want string
		line             int
		offset           int64
	}{
		{"empty", "", "the file ends where an object should be", 1, 0},
		{"a list", "[]", "'[' where an object should be", 1, 0},
		{"cut", "{\n\"m\": {\"input_cost_per_token\": 1", "the file ends where a comma or the object's end should be", 2, 33},
		{"cut in a string", "{\n\"m", "a string does not end", 2, 2},
		{"NaN", "{\"m\": {\n\"input_cost_per_token\": NaN}}", "'N' where a value should be", 2, 32},
		{"infinity", `{"m": {"input_cost_per_token": Infinity}}`, "'I' where a value should be", 1, 31},
		{"negative", "{\"m\": {\n\n\"input_cost_per_token\": -1e-6}}", "a price is negative", 3, 33},
		{"negative where nothing is taken", `{"m": {"output_cost_per_pixel": -0.5}}`, "a price is negative", 1, 32},
		{"model twice", "{\"m\": {},\n\"m\": {}}", `the name "m" comes twice`, 2, 10},
		{"model twice, written in two ways", "{\"m\": {},\n\"\\u006d\": {}}", `the name "m" comes twice`, 2, 10},
		{"field twice", `{"m": {"a": 1, "a": 1}}`, `the name "a" comes twice`, 1, 15},
		{"field twice, nested", `{"m": {"a": {"b": 1, "b": 2}}}`, `the name "b" comes twice`, 1, 21},
		{"leading zero", `{"m": {"input_cost_per_token": 01}}`, "a number is malformed", 1, 31},
		{"plus", `{"m": {"input_cost_per_token": +1}}`, "'+' where a value should be", 1, 31},
		{"bare point", `{"m": {"input_cost_per_token": 1.}}`, "a number is malformed", 1, 31},
		{"trailing comma", `{"m": {"a": 1,}}`, "'}' where a name in quotes should be", 1, 14},
		{"text after", "{}\n{}", "text after the object's end", 2, 3},
		{"not UTF-8", "{\"m\xff\": {}}", "a string is not UTF-8", 1, 1},
		{"control character", "{\"m\x01\": {}}", "a control character in a string", 1, 3},
		{"unknown escape", `{"m\q": {}}`, "a string has an unknown escape", 1, 1},
		{"deep", `{"m": {"a": ` + deep + `}}`, "values are nested deeper than 32", 1, 42},
		{"long name", `{"` + strings.Repeat("x", 257) + `": {}}`, "a name is longer than 256 bytes", 1, 1},
		{"byte order mark", "\ufeff{}", "'ï' where an object should be", 1, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := ReadPriceFile(strings.NewReader(tt.file))
			var place *FileError
			if !errors.As(err, &place) || !errors.Is(err, ErrInvalid) {
				t.Fatalf("error %v, want a FileError", err)
			}
			if place.What != tt.want || place.Line != tt.line || place.Offset != tt.offset {
				t.Errorf("got line %d, byte %d: %s\nwant line %d, byte %d: %s", place.Line, place.Offset, place.What, tt.line, tt.offset, tt.want)
			}
		})
	}
	t.Run("too many entries", func(t *testing.T) {
		var b strings.Builder
		b.WriteString("{")
		for i := range MaxPriceFileEntries + 1 {
			fmt.Fprintf(&b, "%s\"m%d\":{}", map[bool]string{true: "", false: ","}[i == 0], i)
		}
		b.WriteString("}")
		if _, err := ReadPriceFile(strings.NewReader(b.String())); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "more than 100000 entries") {
			t.Errorf("error %v", err)
		}
	})
	t.Run("too large", func(t *testing.T) {
		if _, err := ReadPriceFile(&spaces{n: MaxPriceFileBytes + 1}); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "larger than 64 MiB") {
			t.Errorf("error %v", err)
		}
	})
}

// spaces is a reader of n spaces.
type spaces struct{ n int }

func (s *spaces) Read(p []byte) (int, error) {
	if s.n == 0 {
		return 0, errors.New("read beyond the limit")
	}
	n := min(s.n, len(p))
	for i := range p[:n] {
		p[i] = ' '
	}
	s.n -= n
	return n, nil
}

func TestReadPriceFileNamesItCannotUse(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", "*", `a\u0000b`, " a", "a\\n"} {
		file, err := ReadPriceFile(strings.NewReader(`{"` + name + `": {"input_cost_per_token": 1}}`))
		if err != nil || len(file.Prices) != 0 || len(file.LeftOut) != 1 {
			t.Errorf("name %q: %d prices, %v, %v; want it left out", name, len(file.Prices), file.LeftOut, err)
		}
	}
	for _, number := range []string{"1e999999999", "1e-999999999", "1" + strings.Repeat("0", 80), "1e12"} {
		file, err := ReadPriceFile(strings.NewReader(`{"m": {"input_cost_per_token": ` + number + `}}`))
		if err != nil || len(file.Prices) != 0 || len(file.LeftOut) != 1 {
			t.Errorf("price %s: %d prices, %v, %v; want it left out", number, len(file.Prices), file.LeftOut, err)
		}
	}
}

// realPriceFile is a public price list that may lie beside the repository.
func realPriceFile(t testing.TB) []byte {
	t.Helper()
	root, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(root, "go.mod")); err == nil {
			break
		}
		if root == filepath.Dir(root) {
			t.Fatal("no go.mod above the working directory")
		}
		root = filepath.Dir(root)
	}
	path := filepath.Join(root, "..", "shared", "prices", "litellm-model-prices.json")
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		t.Skip("skipped: there is no real price file beside the repository")
	}
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// Every price that was taken from the real file equals the file's number, and
// every field that looks like a price is either taken or listed.
func TestRealPriceFile(t *testing.T) {
	t.Parallel()
	data := realPriceFile(t)
	file, err := ReadPriceFile(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	var entries map[string]map[string]json.RawMessage
	if err := json.Unmarshal(data, &entries); err != nil {
		t.Fatal(err)
	}
	accounted := map[string]bool{}
	for _, p := range file.Prices {
		want, ok := new(big.Rat).SetString(string(entries[p.Model][p.Field]))
		if !ok {
			t.Fatalf("%s %s is no number", p.Model, p.Field)
		}
		got := new(big.Rat).Quo(fraction(p.Amount), new(big.Rat).SetInt64(p.UnitSize))
		if p.Meter == MeterAudioMillis {
			got.Mul(got, big.NewRat(1000, 1)) // the file counts seconds
		}
		if got.Cmp(want) != 0 {
			t.Errorf("%s %s: %v per %d, the file says %s", p.Model, p.Field, p.Amount, p.UnitSize, entries[p.Model][p.Field])
		}
		accounted[p.Model+"\x00"+p.Field] = true
	}
	whole := map[string]bool{}
	for _, l := range file.LeftOut {
		if l.Field == "" {
			whole[l.Entry] = true
		}
		if l.Reason == "an unknown kind of price" {
			t.Logf("the reader does not know this kind of price: %s %s", l.Entry, l.Field)
		}
		accounted[l.Entry+"\x00"+l.Field] = true
	}
	for model, fields := range entries {
		for field := range fields {
			if isPriceField(field) && !whole[model] && !accounted[model+"\x00"+field] {
				t.Errorf("%s %s is neither taken nor listed", model, field)
			}
		}
	}
	if file.Entries != len(entries) {
		t.Errorf("%d entries read, the file has %d", file.Entries, len(entries))
	}
	t.Logf("%d entries, %d prices taken (%d of zero), %d left out", file.Entries, len(file.Prices), file.Zero, len(file.LeftOut))
}

// What the reader accepts is valid JSON in UTF-8, and what is valid is refused
// only for a reason of our own.
func FuzzReadPriceFile(f *testing.F) {
	f.Add(readFixture(f))
	for _, seed := range []string{
		`{}`, `{"m":{"input_cost_per_token":2.5e-06}}`, `{"m":{"input_cost_per_token":-0}}`, `{"m":[1,{"a":null}]}`, `{"m":{"a":"\ud800"}}`,
		`{"m":{"input_cost_per_token":1E+400}}`, "{\"a\":{},\r\n\t\"a\":{}}", `{"m":tru}`, `{"m":{"input_cost_per_token":0.1e}}`, "\x00",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := ReadPriceFile(bytes.NewReader(data))
		if err == nil {
			if !json.Valid(data) {
				t.Fatalf("accepted what is not JSON: %q", data)
			}
			for _, p := range file.Prices {
				if p.Amount.IsNeg() || p.UnitSize < 1 || !utf8.ValidString(p.Model) || p.Model == AnyModel {
					t.Fatalf("unusable price %+v", p)
				}
			}
			return
		}
		var place *FileError
		if !errors.As(err, &place) {
			t.Fatalf("error %v without a place", err)
		}
		if place.Offset < 0 || place.Offset > int64(len(data)) || place.Line < 1 || place.Line > 1+bytes.Count(data, []byte("\n")) {
			t.Fatalf("the place %+v is not in the file", place)
		}
		if json.Valid(data) && utf8.Valid(data) && bytes.HasPrefix(bytes.TrimSpace(data), []byte("{")) {
			for _, own := range []string{"comes twice", "nested deeper", "longer than", "negative", "entries"} {
				if strings.Contains(place.What, own) {
					return
				}
			}
			t.Fatalf("refused valid JSON: %v", err)
		}
	})
}
