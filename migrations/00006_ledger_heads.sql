-- +goose Up

-- The rolling sums have no range that one tenant's figures could leave: an
-- hour's close is one transaction for all tenants, and what was added must come
-- off again exactly.
ALTER TABLE usage_30d
    ALTER COLUMN requests            TYPE numeric,
    ALTER COLUMN input_tokens        TYPE numeric,
    ALTER COLUMN output_tokens       TYPE numeric,
    ALTER COLUMN cached_input_tokens TYPE numeric,
    ALTER COLUMN reasoning_tokens    TYPE numeric,
    ALTER COLUMN tool_calls          TYPE numeric,
    ALTER COLUMN images              TYPE numeric,
    ALTER COLUMN audio_ms            TYPE numeric,
    ALTER COLUMN gpu_ms              TYPE numeric,
    ALTER COLUMN milli_units         TYPE numeric;

-- A reservation that was once final stays so: what stands open although an event
-- ended it takes its state and hold from the last event that did.
UPDATE reservations r SET
    seq = h.seq, state = h.state, head_event_id = h.event_id,
    tenant_id = h.tenant_id, request_id = h.request_id, key_id = h.key_id, endpoint = h.endpoint, model = h.model,
    weight_milli = h.weight_milli, held_milli_units = h.held_milli_units, total_milli_units = h.total_milli_units,
    estimated = h.estimated, expires_at = h.expires_at
FROM (
    SELECT DISTINCT ON (reservation_id) *
    FROM journal
    WHERE state IN ('settled', 'cancelled')
        AND reservation_id IN (SELECT reservation_id FROM reservations WHERE state IN ('held', 'expired'))
    ORDER BY reservation_id, seq DESC, event_id DESC
) h
WHERE r.reservation_id = h.reservation_id AND r.state IN ('held', 'expired');

-- +goose Down
UPDATE usage_30d SET
    requests            = greatest(least(requests, 9223372036854775807), -9223372036854775808),
    input_tokens        = greatest(least(input_tokens, 9223372036854775807), -9223372036854775808),
    output_tokens       = greatest(least(output_tokens, 9223372036854775807), -9223372036854775808),
    cached_input_tokens = greatest(least(cached_input_tokens, 9223372036854775807), -9223372036854775808),
    reasoning_tokens    = greatest(least(reasoning_tokens, 9223372036854775807), -9223372036854775808),
    tool_calls          = greatest(least(tool_calls, 9223372036854775807), -9223372036854775808),
    images              = greatest(least(images, 9223372036854775807), -9223372036854775808),
    audio_ms            = greatest(least(audio_ms, 9223372036854775807), -9223372036854775808),
    gpu_ms              = greatest(least(gpu_ms, 9223372036854775807), -9223372036854775808),
    milli_units         = greatest(least(milli_units, 9223372036854775807), -9223372036854775808);
ALTER TABLE usage_30d
    ALTER COLUMN requests            TYPE bigint,
    ALTER COLUMN input_tokens        TYPE bigint,
    ALTER COLUMN output_tokens       TYPE bigint,
    ALTER COLUMN cached_input_tokens TYPE bigint,
    ALTER COLUMN reasoning_tokens    TYPE bigint,
    ALTER COLUMN tool_calls          TYPE bigint,
    ALTER COLUMN images              TYPE bigint,
    ALTER COLUMN audio_ms            TYPE bigint,
    ALTER COLUMN gpu_ms              TYPE bigint,
    ALTER COLUMN milli_units         TYPE bigint;
