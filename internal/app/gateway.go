package app

import (
	"context"

	"tollgate/admission/httpapi"
	admissionredis "tollgate/admission/redis"
	"tollgate/events"
	"tollgate/events/kafka"
	"tollgate/events/relay"
	tenancyredis "tollgate/tenancy/redis"
)

// admission returns the shared store, and adds it to the parts so that it
// stops after everything that was added later.
func (a *App) admission() (*admissionredis.Store, error) {
	if a.store != nil {
		return a.store, nil
	}
	client, err := a.redis()
	if err != nil {
		return nil, err
	}
	store, err := admissionredis.New(admissionredis.Options{
		Client:     client,
		Prefix:     a.cfg.Redis.Prefix,
		Shards:     a.cfg.Redis.Shards,
		Retention:  a.cfg.Admission.IdempotencyRetention,
		MaxBacklog: a.cfg.Admission.OutboxMaxRecords,
		Timeout:    a.cfg.Admission.RequestTimeout,
		Logger:     a.log,
		Registerer: a.metrics,
	})
	if err != nil {
		return nil, err
	}
	a.store = store
	a.add(part{
		name:  "admission store",
		start: func(context.Context) error { return nil },
		stop:  store.Stop,
	})
	return store, nil
}

// tenants returns the shared directory, started before whatever uses it.
func (a *App) tenants() (*tenancyredis.Directory, error) {
	if a.directory != nil {
		return a.directory, nil
	}
	client, err := a.redis()
	if err != nil {
		return nil, err
	}
	a.directory = tenancyredis.NewDirectory(client, a.cfg.Redis.Prefix, tenancyredis.DirectoryOptions{Logger: a.log})
	a.add(part{
		name:  "directory",
		start: func(context.Context) error { a.directory.Start(); return nil },
		stop:  func(context.Context) error { a.directory.Stop(); return nil },
	})
	return a.directory, nil
}

// Gateway adds the gateway role: the HTTP API, the front door, the publisher of
// tenants, the rebuilder of lost state, and the relay; the front door and the relay
// where the configuration says so.
func (a *App) Gateway() error {
	store, err := a.admission()
	if err != nil {
		return err
	}
	directory, err := a.tenants()
	if err != nil {
		return err
	}
	client, err := a.kafka()
	if err != nil {
		return err
	}
	redisClient, err := a.redis()
	if err != nil {
		return err
	}
	eviction := newEvictionWatch(redisClient, a.log)
	a.background("eviction watch", eviction.run)
	if err := a.steward(); err != nil {
		return err
	}
	if a.cfg.Relay.EnabledInGateway {
		if err := a.Relay(); err != nil {
			return err
		}
	}
	front, err := a.frontDoor(store, directory)
	if err != nil {
		return err
	}
	err = a.serveHTTP(httpapi.Options{
		Store:          store,
		Directory:      directory,
		Meters:         meterSink{client.NewProducer(kafka.ProducerOptions{})},
		Listen:         a.cfg.Listen,
		AdminListen:    "-", // the app's own serves every role
		RequestTimeout: a.cfg.Admission.RequestTimeout,
		MaxBodyBytes:   int64(a.cfg.Admission.MaxBodyBytes),
		Logger:         a.log,
		Registerer:     a.metrics,
		Gatherer:       a.metrics,
	}, front)
	if err != nil {
		return err
	}
	a.check("admission", store.Ready)
	a.check("redis keeps its keys", eviction.ready)
	a.check("tenants", func(context.Context) error { return directory.Ready() })
	return nil
}

// Relay adds the relay role: outbox to Kafka.
func (a *App) Relay() error {
	if a.relaying {
		return nil
	}
	a.relaying = true
	store, err := a.admission()
	if err != nil {
		return err
	}
	client, err := a.kafka()
	if err != nil {
		return err
	}
	r, err := relay.New(relay.Options{
		Outbox:    store,
		Publisher: client.NewProducer(kafka.ProducerOptions{}),
		Owner:     processName(),
		Probe: func(ctx context.Context) error {
			_, err := client.HighWaters(ctx, events.TopicEvents)
			return err
		},
		LeaseTTL:   a.cfg.Relay.Lease,
		Logger:     a.log,
		Registerer: a.metrics,
	})
	if err != nil {
		return err
	}
	a.add(part{
		name:  "relay",
		start: func(context.Context) error { r.Start(); return nil },
		stop:  func(context.Context) error { r.Stop(); return nil },
	})
	a.check("relay", func(context.Context) error { return r.Healthy() })
	return nil
}

// meterSink sends meter readings to their topic.
type meterSink struct{ producer *kafka.Producer }

// Publish implements httpapi.MeterSink.
func (m meterSink) Publish(ctx context.Context, batch []events.Event) error {
	return m.producer.Publish(ctx, events.TopicMeters, batch)
}
