package fakeprovider

import (
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// control serves /fake/…: what a test asks of this server, and no vendor has.
//
//	GET    /fake/health   200
//	GET    /fake/log      the exchanges that ended, a line of JSON each; ?since=N leaves out the first N
//	DELETE /fake/log      forget them and the totals
//	GET    /fake/totals   sums
//	GET    /fake/faults   the rules in force
//	POST   /fake/faults   add a rule, as JSON or as a line of text
//	DELETE /fake/faults   drop all rules
func (s *Server) control(w http.ResponseWriter, r *http.Request) {
	x := exchange{server: s, r: r}
	if !x.authorized() {
		http.Error(w, "this server wants its key", http.StatusUnauthorized)
		return
	}
	switch r.Method + " " + r.URL.Path {
	case "GET /fake/health":
		w.WriteHeader(http.StatusOK)
	case "GET /fake/log":
		since, _ := strconv.ParseInt(r.URL.Query().Get("since"), 10, 64)
		w.Header().Set("Content-Type", "application/jsonl")
		encoder := json.NewEncoder(w)
		for _, record := range s.Records() {
			if record.Sequence > since && encoder.Encode(record) != nil {
				return
			}
		}
	case "DELETE /fake/log":
		s.ResetLog()
		w.WriteHeader(http.StatusNoContent)
	case "GET /fake/totals":
		writeJSON(w, s.Totals())
	case "GET /fake/faults":
		writeJSON(w, s.rules.list())
	case "POST /fake/faults":
		s.addRule(w, r)
	case "DELETE /fake/faults":
		s.rules.clear()
		w.WriteHeader(http.StatusNoContent)
	default:
		http.Error(w, "there is no "+r.Method+" "+r.URL.Path, http.StatusNotFound)
	}
}

// SetFault adds a rule while the server runs.
func (s *Server) SetFault(rule Rule) error {
	if err := rule.check(); err != nil {
		return err
	}
	s.rules.add(rule)
	return nil
}

// ClearFaults drops all rules.
func (s *Server) ClearFaults() { s.rules.clear() }

func (s *Server) addRule(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<16))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var rule Rule
	if text := strings.TrimSpace(string(body)); strings.HasPrefix(text, "{") {
		decoder := json.NewDecoder(strings.NewReader(text))
		decoder.DisallowUnknownFields()
		err = decoder.Decode(&rule)
	} else {
		rule, err = ParseRule(text)
	}
	if err == nil {
		err = s.SetFault(rule)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // a client that left misses nothing
}
