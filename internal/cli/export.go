package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"tollgate/events"
	"tollgate/events/kafka"
	"tollgate/events/logfile"
	"tollgate/internal/app"
	ledgerpg "tollgate/ledger/postgres"
)

type exportCmd struct {
	File  string `arg:"" help:"File to write (JSON Lines with a checksum at its end)." type:"path"`
	Topic string `help:"Topic to export." enum:"tollgate.events.v1,tollgate.meters.v1,tollgate.dead-letter.v1" default:"tollgate.events.v1"`
	Force bool   `help:"Replace the file if it exists."`
}

type exportOutput struct {
	File    string        `json:"file"`
	Topic   string        `json:"topic"`
	Records int64         `json:"records"`
	Ends    map[int]int64 `json:"ends"` // offset after the last record, by partition
}

// Help implements kong.HelpProvider.
func (exportCmd) Help() string {
	return `Writes what the log holds at this moment. "tollgate replay --file" reads it back and refuses a file
that was cut off or changed.

Example:
  tollgate export events-2026-11-30.jsonl`
}

// Run exports the log.
func (c *exportCmd) Run(e *env) error {
	cfg, err := e.config()
	if err != nil {
		return err
	}
	if _, err := os.Stat(c.File); err == nil && !c.Force {
		return withStatus(ExitConflict, fmt.Errorf("%s exists: choose another name, or pass --force", c.File))
	}
	client, err := app.NewKafka(cfg, e.logger(cfg))
	if err != nil {
		return err
	}
	defer client.Close()
	if err := logThere(e.ctx, client, c.Topic); err != nil {
		return err
	}

	// The file gets its name only when it is whole.
	tmp, err := os.CreateTemp(filepath.Dir(c.File), filepath.Base(c.File)+".*.part")
	if err != nil {
		return withStatus(ExitUsage, err)
	}
	defer func() { _ = os.Remove(tmp.Name()) }() // gone already when it was renamed
	out := exportOutput{File: c.File, Topic: c.Topic}
	buffered := bufio.NewWriterSize(tmp, 1<<20)
	w := logfile.NewWriter(buffered)
	bar := e.progress(-1, "records")
	var written int64 // by several partitions at once
	out.Ends, err = client.ReadAll(e.ctx, c.Topic, nil, func(_ int, records []events.Record) error {
		atomic.AddInt64(&written, int64(len(records)))
		_ = bar.Add(len(records)) // a bar that cannot be drawn is no reason to stop
		return w.Write(records)
	})
	_ = bar.Finish()
	if err = errors.Join(err, w.Close(), buffered.Flush(), tmp.Sync(), tmp.Close()); err != nil {
		return fmt.Errorf("export %s: %w", c.Topic, err)
	}
	if err := os.Rename(tmp.Name(), c.File); err != nil {
		return fmt.Errorf("name the export: %w", err)
	}
	out.Records = written
	return e.value(out, func() error {
		_, err := fmt.Fprintf(e.out, "Wrote %s records of %s to %s.\n", count(out.Records), out.Topic, out.File)
		return err
	})
}

// logTimeout bounds how long a command waits for Kafka before it has begun.
// Once it reads, it outlasts a broker that goes away for a while.
const logTimeout = 10 * time.Second

// logThere fails where a topic is not there or Kafka is out of reach.
func logThere(ctx context.Context, client *kafka.Client, topic string) error {
	ctx, cancel := context.WithTimeout(ctx, logTimeout)
	defer cancel()
	if _, err := client.HighWaters(ctx, topic); err != nil {
		return fmt.Errorf("read the log: %w", err)
	}
	return nil
}

// fileReader reads an exported log.
func fileReader(path string) ledgerpg.LogReader {
	return func(ctx context.Context, fn func(int, []events.Record) error) error {
		f, err := os.Open(path)
		if err != nil {
			return withStatus(ExitUsage, err)
		}
		defer func() { _ = f.Close() }() // only read
		_, err = logfile.Read(ctx, f, func(topic string, partition int, records []events.Record) error {
			if topic != events.TopicEvents {
				return usagef("%s is an export of %s; a replay needs %s", path, topic, events.TopicEvents)
			}
			return fn(partition, records)
		})
		if err != nil {
			return withStatus(ExitUsage, fmt.Errorf("%s: %w", path, err))
		}
		return nil
	}
}
