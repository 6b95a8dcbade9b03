package app

import (
	"context"

	tenancypg "tollgate/tenancy/postgres"
	tenancyredis "tollgate/tenancy/redis"
)

// steward adds what keeps Redis's contents right, where there is a database to
// learn them from: the publisher of tenants and the rebuilder of lost state.
// Any number of gateways may run them; one of each is at work.
func (a *App) steward() error {
	if a.cfg.Postgres.URL == "" {
		a.log.Warn("no postgres.url: this gateway neither publishes tenants nor rebuilds lost state; another must")
		return nil
	}
	pool, err := a.postgres()
	if err != nil {
		return err
	}
	client, err := a.redis()
	if err != nil {
		return err
	}
	publisher := tenancyredis.NewPublisher(tenancypg.NewFeed(pool), client, a.cfg.Redis.Prefix, tenancyredis.PublisherOptions{Logger: a.log})
	a.add(part{
		name:  "publisher",
		start: func(context.Context) error { publisher.Start(); return nil },
		stop:  func(context.Context) error { publisher.Stop(); return nil },
	})
	r, err := a.rebuilder()
	if err != nil {
		return err
	}
	a.background("rebuilder", r.run)
	return nil
}
