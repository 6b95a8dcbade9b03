-- +goose Up

-- Gateway, model and GPU meters side by side, by tenant and window. A rerun
-- writes the same row again. over_since is when the window was first seen over
-- the threshold without a break.
CREATE TABLE drift_reports (
    tenant_id        text        NOT NULL,
    window_kind      text        NOT NULL CHECK (window_kind IN ('hour', 'day')),
    window_start     timestamptz NOT NULL,
    window_end       timestamptz NOT NULL,
    gateway_tokens   bigint      NOT NULL,
    model_tokens     bigint      NOT NULL,
    model_known      boolean     NOT NULL,
    gateway_gpu_ms   bigint      NOT NULL,
    meter_gpu_ms     bigint      NOT NULL,
    gpu_known        boolean     NOT NULL,
    unmetered_tokens bigint      NOT NULL,
    tokens_ppm       bigint      NOT NULL,
    gpu_ppm          bigint      NOT NULL,
    verdict          text        NOT NULL CHECK (verdict IN ('unknown', 'ok', 'suspect', 'drift')),
    over_since       timestamptz,
    judged_at        timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, window_kind, window_start)
);
CREATE INDEX drift_reports_window ON drift_reports (window_kind, window_start);

-- Freezes of automatic settlement. A row is never deleted: who froze and who
-- unfroze, when and why, stays.
CREATE TABLE settlement_freezes (
    freeze_id       bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant_id       text        NOT NULL,
    window_kind     text        NOT NULL CHECK (window_kind IN ('hour', 'day', 'manual')),
    window_start    timestamptz NOT NULL,
    window_end      timestamptz NOT NULL,
    gateway_tokens  bigint      NOT NULL,
    model_tokens    bigint      NOT NULL,
    gateway_gpu_ms  bigint      NOT NULL,
    meter_gpu_ms    bigint      NOT NULL,
    tokens_ppm      bigint      NOT NULL,
    gpu_ppm         bigint      NOT NULL,
    author          text        NOT NULL CHECK (author <> ''),
    reason          text        NOT NULL CHECK (reason <> ''),
    frozen_at       timestamptz NOT NULL,
    unfrozen_at     timestamptz,
    unfrozen_by     text,
    unfreeze_reason text,
    CHECK ((unfrozen_at IS NULL) = (unfrozen_by IS NULL)),
    CHECK ((unfrozen_at IS NULL) = (coalesce(unfreeze_reason, '') = ''))
);
-- A tenant is frozen once at a time, whoever freezes.
CREATE UNIQUE INDEX settlement_freezes_active ON settlement_freezes (tenant_id) WHERE unfrozen_at IS NULL;
CREATE INDEX settlement_freezes_tenant ON settlement_freezes (tenant_id, unfrozen_at);

-- Automatic settlements: written before admission is asked, marked when it
-- answered. While the tenant is frozen they stay queued.
CREATE TABLE automatic_settlements (
    reservation_id      text        PRIMARY KEY,
    tenant_id           text        NOT NULL,
    action              text        NOT NULL CHECK (action IN ('settle', 'cancel')),
    input_tokens        bigint      NOT NULL,
    output_tokens       bigint      NOT NULL,
    cached_input_tokens bigint      NOT NULL,
    reasoning_tokens    bigint      NOT NULL,
    tool_calls          bigint      NOT NULL,
    images              bigint      NOT NULL,
    audio_ms            bigint      NOT NULL,
    gpu_ms              bigint      NOT NULL,
    estimated           boolean     NOT NULL,
    reason              text        NOT NULL,
    queued_at           timestamptz NOT NULL,
    applied_at          timestamptz,
    -- applied: admission took the figures; already_final: somebody else ended
    -- it; closed_in_log: admission knew nothing of it.
    outcome             text CHECK (outcome IN ('applied', 'already_final', 'closed_in_log')),
    attempts            integer     NOT NULL DEFAULT 0,
    next_attempt_at     timestamptz NOT NULL DEFAULT '-infinity',
    last_error          text        NOT NULL DEFAULT '',
    CHECK ((applied_at IS NULL) = (outcome IS NULL))
);
CREATE INDEX automatic_settlements_queue ON automatic_settlements (tenant_id, queued_at, reservation_id) WHERE applied_at IS NULL;
CREATE INDEX automatic_settlements_applied ON automatic_settlements (applied_at) WHERE applied_at IS NOT NULL;

-- Events that the reconciler decided on and the log has not acknowledged yet.
-- They are written with the change that they tell of.
CREATE TABLE reconcile_outbox (
    seq          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id     text        NOT NULL UNIQUE,
    source       text        NOT NULL,
    type         text        NOT NULL,
    tenant_id    text        NOT NULL,
    event_time   timestamptz NOT NULL,
    data         bytea       NOT NULL,
    published_at timestamptz
);
CREATE INDEX reconcile_outbox_waiting ON reconcile_outbox (seq) WHERE published_at IS NULL;

-- One row a run of the leader.
CREATE TABLE reconcile_runs (
    run_id        bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    leader        text        NOT NULL,
    started_at    timestamptz NOT NULL,
    ended_at      timestamptz,
    drift_through timestamptz, -- hours before this were judged in this run
    report        jsonb       NOT NULL DEFAULT '{}'
);
CREATE INDEX reconcile_runs_drift ON reconcile_runs (drift_through) WHERE drift_through IS NOT NULL;
CREATE INDEX reconcile_runs_started ON reconcile_runs (started_at);

-- A meter's event id that came again with other content. The first is kept.
CREATE TABLE meter_conflicts (
    topic           text        NOT NULL,
    topic_partition integer     NOT NULL,
    topic_offset    bigint      NOT NULL,
    event_id        text        NOT NULL,
    tenant_id       text        NOT NULL,
    other_event     bytea       NOT NULL,
    seen_at         timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (topic, topic_partition, topic_offset)
);

-- An hour's figures ask for the readings of a tenant's intervals and strays by
-- time, and for the readings of a set of reservations.
CREATE INDEX meter_readings_to_time ON meter_readings USING brin (to_time);
CREATE INDEX meter_readings_reservation_tenant ON meter_readings (tenant_id, reservation_id) WHERE reservation_id <> '';

-- +goose Down
DROP INDEX meter_readings_reservation_tenant, meter_readings_to_time;
DROP TABLE meter_conflicts, reconcile_runs, reconcile_outbox, automatic_settlements, settlement_freezes, drift_reports;
