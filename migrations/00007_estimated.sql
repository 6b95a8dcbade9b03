-- +goose Up

-- Of gateway_tokens, what the gateway counted itself because nobody else said:
-- such figures differ from a meter's without anything being wrong.
ALTER TABLE drift_reports ADD COLUMN estimated_tokens bigint NOT NULL DEFAULT 0;
