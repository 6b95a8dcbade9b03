-- +goose Up

-- How far each shard of the admission state was when it was last seen. State
-- that is less far under the same epoch, or has an older epoch, is an old copy.
CREATE TABLE admission_state (
    shard   integer     PRIMARY KEY,
    epoch   text        NOT NULL COLLATE "C",
    added   bigint      NOT NULL, -- records ever put into the shard's outbox; never falls
    seen_at timestamptz NOT NULL DEFAULT now()
);

-- +goose Down
DROP TABLE admission_state;
