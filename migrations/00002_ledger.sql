-- +goose Up

-- Every event that was folded, once. "day" comes from the event id, never from
-- the event's time, so that a repeat meets the same unique key whatever its
-- time says. The columns are what the leaf hash covers, in this order.
CREATE TABLE journal (
    day                 date        NOT NULL,
    event_id            text        NOT NULL COLLATE "C",
    topic_partition     integer     NOT NULL,
    topic_offset        bigint      NOT NULL,
    type                text        NOT NULL,
    tenant_id           text        NOT NULL,
    reservation_id      text        NOT NULL,
    request_id          text        NOT NULL,
    key_id              text        NOT NULL,
    endpoint            text        NOT NULL,
    model               text        NOT NULL,
    seq                 bigint      NOT NULL,
    state               text        NOT NULL,
    event_time          timestamptz NOT NULL,
    input_tokens        bigint      NOT NULL,
    output_tokens       bigint      NOT NULL,
    cached_input_tokens bigint      NOT NULL,
    reasoning_tokens    bigint      NOT NULL,
    tool_calls          bigint      NOT NULL,
    images              bigint      NOT NULL,
    audio_ms            bigint      NOT NULL,
    gpu_ms              bigint      NOT NULL,
    milli_units         bigint      NOT NULL,
    total_milli_units   bigint      NOT NULL DEFAULT 0, -- the reservation's sum after this event, as the event says
    held_milli_units    bigint      NOT NULL,
    weight_milli        bigint      NOT NULL,
    expires_at          timestamptz NOT NULL,
    estimated           boolean     NOT NULL,
    tombstone           boolean     NOT NULL,
    author              text        NOT NULL,
    reason              text        NOT NULL,
    leaf                bytea       NOT NULL, -- RFC 6962 leaf hash of the canonical encoding
    PRIMARY KEY (day, event_id)
) PARTITION BY RANGE (day);
CREATE TABLE journal_default PARTITION OF journal DEFAULT;
CREATE INDEX journal_position ON journal (topic_partition, topic_offset);

-- The same event id with other content. Neither added nor dropped in silence.
CREATE TABLE event_conflicts (
    topic_partition integer     NOT NULL,
    topic_offset    bigint      NOT NULL,
    event_id        text        NOT NULL COLLATE "C",
    tenant_id       text        NOT NULL,
    kept_leaf       bytea       NOT NULL,
    other_leaf      bytea       NOT NULL,
    other_event     jsonb       NOT NULL,
    seen_at         timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (topic_partition, topic_offset)
);

-- One row a reservation: sums of its deltas, and the state of its highest seq.
CREATE TABLE reservations (
    reservation_id      text        PRIMARY KEY,
    tenant_id           text        NOT NULL,
    request_id          text        NOT NULL,
    key_id              text        NOT NULL,
    endpoint            text        NOT NULL,
    model               text        NOT NULL,
    seq                 bigint      NOT NULL,
    state               text        NOT NULL,
    weight_milli        bigint      NOT NULL,
    held_milli_units    bigint      NOT NULL,
    input_tokens        bigint      NOT NULL,
    output_tokens       bigint      NOT NULL,
    cached_input_tokens bigint      NOT NULL,
    reasoning_tokens    bigint      NOT NULL,
    tool_calls          bigint      NOT NULL,
    images              bigint      NOT NULL,
    audio_ms            bigint      NOT NULL,
    gpu_ms              bigint      NOT NULL,
    milli_units         bigint      NOT NULL,
    estimated           boolean     NOT NULL,
    first_event_at      timestamptz NOT NULL,
    last_event_at       timestamptz NOT NULL,
    expires_at          timestamptz NOT NULL,
    -- The event that seq, state and hold come from: of two with one seq the
    -- greater id wins, so that order of arrival does not matter.
    head_event_id       text        NOT NULL DEFAULT '' COLLATE "C",
    events              bigint      NOT NULL DEFAULT 0, -- equal to seq when none is missing
    total_milli_units   bigint      NOT NULL DEFAULT 0  -- what the head event says milli_units should be
) WITH (fillfactor = 80);
CREATE INDEX reservations_open ON reservations (expires_at) WHERE state IN ('held', 'expired');
CREATE INDEX reservations_tenant ON reservations (tenant_id, last_event_at);

-- Exact use by hour of the event's time.
CREATE TABLE usage_hour (
    tenant_id           text        NOT NULL,
    hour                timestamptz NOT NULL,
    model               text        NOT NULL,
    endpoint            text        NOT NULL,
    key_id              text        NOT NULL,
    requests            bigint      NOT NULL, -- reservations that reached settled or cancelled in this hour
    input_tokens        bigint      NOT NULL,
    output_tokens       bigint      NOT NULL,
    cached_input_tokens bigint      NOT NULL,
    reasoning_tokens    bigint      NOT NULL,
    tool_calls          bigint      NOT NULL,
    images              bigint      NOT NULL,
    audio_ms            bigint      NOT NULL,
    gpu_ms              bigint      NOT NULL,
    milli_units         bigint      NOT NULL,
    PRIMARY KEY (tenant_id, hour, model, endpoint, key_id)
) WITH (fillfactor = 70);
CREATE INDEX usage_hour_hour ON usage_hour (hour);

-- Sum of the closed hours of the rolling 30 days, by tenant. With the open
-- hour's exact bucket it answers the 30-day query.
CREATE TABLE usage_30d (
    tenant_id           text   PRIMARY KEY,
    requests            bigint NOT NULL,
    input_tokens        bigint NOT NULL,
    output_tokens       bigint NOT NULL,
    cached_input_tokens bigint NOT NULL,
    reasoning_tokens    bigint NOT NULL,
    tool_calls          bigint NOT NULL,
    images              bigint NOT NULL,
    audio_ms            bigint NOT NULL,
    gpu_ms              bigint NOT NULL,
    milli_units         bigint NOT NULL
) WITH (fillfactor = 70);

-- The window of usage_30d: hours in [window_start, closed_through). Folds hold
-- a shared advisory lock, the hour's close an exclusive one.
CREATE TABLE usage_window (
    only_row       boolean     PRIMARY KEY DEFAULT true CHECK (only_row),
    window_start   timestamptz NOT NULL,
    closed_through timestamptz NOT NULL
);

-- Where each partition's fold stands, and who owns it: the fence.
CREATE TABLE fold_progress (
    topic           text        NOT NULL,
    topic_partition integer     NOT NULL,
    next_offset     bigint      NOT NULL,
    owner           text        NOT NULL,
    owner_epoch     bigint      NOT NULL,
    consumed        bigint      NOT NULL,
    folded          bigint      NOT NULL,
    duplicates      bigint      NOT NULL,
    dead_lettered   bigint      NOT NULL,
    conflicts       bigint      NOT NULL,
    chain_hash      bytea       NOT NULL,
    tree_size       bigint      NOT NULL,
    tree_range      bytea       NOT NULL, -- compact range: concatenated 32-byte hashes
    last_batch      bigint      NOT NULL DEFAULT 0,
    updated_at      timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (topic, topic_partition)
);

-- One row a flush. batch_root is the RFC 6962 root over the leaves folded in
-- this batch, in offset order; chain_hash links it to the batch before;
-- tree_root is the root over all leaves of the partition so far, which does
-- not depend on where batches were cut.
CREATE TABLE batches (
    topic           text        NOT NULL,
    topic_partition integer     NOT NULL,
    batch           bigint      NOT NULL, -- 1, 2, 3 … in each partition
    first_offset    bigint      NOT NULL,
    last_offset     bigint      NOT NULL,
    consumed        integer     NOT NULL,
    folded          integer     NOT NULL,
    duplicates      integer     NOT NULL,
    dead_lettered   integer     NOT NULL,
    conflicts       integer     NOT NULL,
    batch_root      bytea       NOT NULL,
    prev_hash       bytea       NOT NULL,
    chain_hash      bytea       NOT NULL,
    tree_size       bigint      NOT NULL,
    tree_root       bytea       NOT NULL,
    committed_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (topic, topic_partition, batch)
);

-- What model servers and GPU agents reported, from tollgate.meters.v1.
CREATE TABLE meter_readings (
    event_id       text        PRIMARY KEY,
    kind           text        NOT NULL CHECK (kind IN ('model', 'gpu')),
    tenant_id      text        NOT NULL,
    reservation_id text        NOT NULL, -- '' for an increment of a tenant and interval
    request_id     text        NOT NULL,
    pool           text        NOT NULL,
    model          text        NOT NULL,
    from_time      timestamptz NOT NULL,
    to_time        timestamptz NOT NULL,
    input_tokens   bigint      NOT NULL,
    output_tokens  bigint      NOT NULL,
    gpu_ms         bigint      NOT NULL,
    final          boolean     NOT NULL,
    received_at    timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX meter_readings_reservation ON meter_readings (reservation_id) WHERE reservation_id <> '';
CREATE INDEX meter_readings_tenant_time ON meter_readings (tenant_id, to_time);

-- +goose Down
DROP TABLE meter_readings, batches, fold_progress, usage_window, usage_30d, usage_hour, reservations, event_conflicts, journal;
