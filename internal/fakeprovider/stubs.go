package fakeprovider

import (
	"context"
	"log/slog"
	"net/http"
)

type rules struct{}

type Rule struct{}

func newRules(uint64, []Rule) *rules     { return &rules{} }
func (*rules) match(string) string       { return "" }
func (x *exchange) admit(*ask) bool      { return true }
func (x *exchange) readCache(*ask)       {}
func (s *Server) control(http.ResponseWriter, *http.Request)    {}
func (s *Server) listModels(http.ResponseWriter, *http.Request) {}

type seats struct{}

func newSeats(int, int64, int) *seats { return &seats{} }
func (*seats) leave(int64)            {}

type prefixCache struct{}

func newPrefixCache() *prefixCache { return &prefixCache{} }

type MeterOptions struct{}
type MeterTotals struct{}
type meters struct{}

func startMeters(MeterOptions, *slog.Logger) *meters { return &meters{} }
func (*meters) stop(context.Context) error           { return nil }
func (*meters) totals() MeterTotals                  { return MeterTotals{} }
func (*meters) add(*Record)                          {}
