package route

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"
)

// WatcherOptions configures a Watcher. File and Router are needed; zero values of
// the rest take the defaults named.
type WatcherOptions struct {
	File   string
	Router *Router
	Every  time.Duration       // default 2 s
	Env    func(string) string // default os.Getenv
	Logger *slog.Logger        // default: discard
	// OnReload hears of every attempt to read a changed file: nil, or why the old
	// table stays.
	OnReload func(error)
}

// Watcher reads the table's file again when it, or a file with a key that it
// names, changes. A table with mistakes is logged once, and the old one stays.
type Watcher struct {
	opts   WatcherOptions
	seen   map[string]stamp
	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{}
	once   sync.Once
}

// stamp tells one version of a file from another.
type stamp struct {
	modified time.Time
	size     int64
	missing  bool
}

// Open reads a table from its file, as Watcher does.
func Open(file string, env func(string) string) (*Table, error) {
	table, _, err := open(file, env)
	return table, err
}

// open also returns every file that was read or looked for, as it was before
// that: what changes meanwhile is seen at the next look.
func open(file string, env func(string) string) (*Table, map[string]stamp, error) {
	files := map[string]stamp{}
	read := func(path string) ([]byte, error) {
		files[path] = stampOf(path)
		return readBounded(path)
	}
	data, err := read(file)
	if err != nil {
		return nil, files, fmt.Errorf("read the upstreams: %w", err)
	}
	table, err := Parse(data, file, env, read)
	if err != nil {
		return nil, files, err
	}
	table.files = files
	return table, files, nil
}

// NewWatcher returns a watcher of the file that the router's table came from.
func NewWatcher(opts WatcherOptions) (*Watcher, error) {
	if opts.File == "" || opts.Router == nil {
		return nil, errors.New("route: a watcher needs a file and a router")
	}
	if opts.Every <= 0 {
		opts.Every = 2 * time.Second
	}
	if opts.Env == nil {
		opts.Env = os.Getenv
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.OnReload == nil {
		opts.OnReload = func(error) {}
	}
	w := &Watcher{opts: opts, done: make(chan struct{})}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	w.seen = opts.Router.files()
	return w, nil
}

// Start watches until Stop. It is called at most once.
func (w *Watcher) Start() {
	go func() {
		defer close(w.done)
		ticker := time.NewTicker(w.opts.Every)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				w.look()
			case <-w.ctx.Done():
				return
			}
		}
	}()
}

// Stop ends the watching of a watcher that was started. It may be called twice.
func (w *Watcher) Stop() {
	w.once.Do(w.cancel)
	<-w.done
}

// look reads the table again if one of its files has changed since.
func (w *Watcher) look() {
	changed := len(w.seen) == 0
	for file, was := range w.seen {
		changed = changed || !stampOf(file).same(was)
	}
	if !changed {
		return
	}
	table, files, err := open(w.opts.File, w.opts.Env)
	w.seen = files
	if err == nil {
		w.opts.Router.Replace(table)
		w.opts.Logger.Info("upstreams are read again", "file", w.opts.File, "upstreams", len(table.Upstreams), "models", len(table.Models))
		for _, warning := range table.Warnings {
			w.opts.Logger.Warn("upstreams", "warning", warning)
		}
	} else {
		w.opts.Logger.Error("the upstreams' file has mistakes; the table of before stays", "error", err)
	}
	w.opts.OnReload(err)
}

func stampOf(file string) stamp {
	info, err := os.Stat(file)
	if err != nil {
		return stamp{missing: true}
	}
	return stamp{modified: info.ModTime(), size: info.Size()}
}

func (s stamp) same(t stamp) bool {
	return s.modified.Equal(t.modified) && s.size == t.size && s.missing == t.missing
}

// readBounded reads a file of bounded size.
func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // nothing was written
	return io.ReadAll(io.LimitReader(f, MaxFileBytes+1))
}
