-- Adds a batch's sums to reservations. What is not a sum comes from the head:
-- the event with the greatest (final, seq, id), so what was once final stays so.
INSERT INTO reservations AS r (
    reservation_id, tenant_id, request_id, key_id, endpoint, model,
    seq, state, weight_milli, held_milli_units,
    input_tokens, output_tokens, cached_input_tokens, reasoning_tokens,
    tool_calls, images, audio_ms, gpu_ms, milli_units,
    estimated, first_event_at, last_event_at, expires_at,
    head_event_id, events, total_milli_units)
SELECT * FROM unnest(
    $1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[],
    $7::bigint[], $8::text[], $9::bigint[], $10::bigint[],
    $11::bigint[], $12::bigint[], $13::bigint[], $14::bigint[],
    $15::bigint[], $16::bigint[], $17::bigint[], $18::bigint[], $19::bigint[],
    $20::boolean[], $21::timestamptz[], $22::timestamptz[], $23::timestamptz[],
    $24::text[], $25::bigint[], $26::bigint[])
ON CONFLICT (reservation_id) DO UPDATE SET
    tenant_id           = CASE WHEN (excluded.state IN ('settled', 'cancelled'), excluded.seq, excluded.head_event_id) > (r.state IN ('settled', 'cancelled'), r.seq, r.head_event_id) THEN excluded.tenant_id ELSE r.tenant_id END,
    request_id          = CASE WHEN (excluded.state IN ('settled', 'cancelled'), excluded.seq, excluded.head_event_id) > (r.state IN ('settled', 'cancelled'), r.seq, r.head_event_id) THEN excluded.request_id ELSE r.request_id END,
    key_id              = CASE WHEN (excluded.state IN ('settled', 'cancelled'), excluded.seq, excluded.head_event_id) > (r.state IN ('settled', 'cancelled'), r.seq, r.head_event_id) THEN excluded.key_id ELSE r.key_id END,
    endpoint            = CASE WHEN (excluded.state IN ('settled', 'cancelled'), excluded.seq, excluded.head_event_id) > (r.state IN ('settled', 'cancelled'), r.seq, r.head_event_id) THEN excluded.endpoint ELSE r.endpoint END,
    model               = CASE WHEN (excluded.state IN ('settled', 'cancelled'), excluded.seq, excluded.head_event_id) > (r.state IN ('settled', 'cancelled'), r.seq, r.head_event_id) THEN excluded.model ELSE r.model END,
    state               = CASE WHEN (excluded.state IN ('settled', 'cancelled'), excluded.seq, excluded.head_event_id) > (r.state IN ('settled', 'cancelled'), r.seq, r.head_event_id) THEN excluded.state ELSE r.state END,
    weight_milli        = CASE WHEN (excluded.state IN ('settled', 'cancelled'), excluded.seq, excluded.head_event_id) > (r.state IN ('settled', 'cancelled'), r.seq, r.head_event_id) THEN excluded.weight_milli ELSE r.weight_milli END,
    held_milli_units    = CASE WHEN (excluded.state IN ('settled', 'cancelled'), excluded.seq, excluded.head_event_id) > (r.state IN ('settled', 'cancelled'), r.seq, r.head_event_id) THEN excluded.held_milli_units ELSE r.held_milli_units END,
    estimated           = CASE WHEN (excluded.state IN ('settled', 'cancelled'), excluded.seq, excluded.head_event_id) > (r.state IN ('settled', 'cancelled'), r.seq, r.head_event_id) THEN excluded.estimated ELSE r.estimated END,
    expires_at          = CASE WHEN (excluded.state IN ('settled', 'cancelled'), excluded.seq, excluded.head_event_id) > (r.state IN ('settled', 'cancelled'), r.seq, r.head_event_id) THEN excluded.expires_at ELSE r.expires_at END,
    total_milli_units   = CASE WHEN (excluded.state IN ('settled', 'cancelled'), excluded.seq, excluded.head_event_id) > (r.state IN ('settled', 'cancelled'), r.seq, r.head_event_id) THEN excluded.total_milli_units ELSE r.total_milli_units END,
    head_event_id       = CASE WHEN (excluded.state IN ('settled', 'cancelled'), excluded.seq, excluded.head_event_id) > (r.state IN ('settled', 'cancelled'), r.seq, r.head_event_id) THEN excluded.head_event_id ELSE r.head_event_id END,
    seq                 = CASE WHEN (excluded.state IN ('settled', 'cancelled'), excluded.seq, excluded.head_event_id) > (r.state IN ('settled', 'cancelled'), r.seq, r.head_event_id) THEN excluded.seq ELSE r.seq END,
    input_tokens        = r.input_tokens + excluded.input_tokens,
    output_tokens       = r.output_tokens + excluded.output_tokens,
    cached_input_tokens = r.cached_input_tokens + excluded.cached_input_tokens,
    reasoning_tokens    = r.reasoning_tokens + excluded.reasoning_tokens,
    tool_calls          = r.tool_calls + excluded.tool_calls,
    images              = r.images + excluded.images,
    audio_ms            = r.audio_ms + excluded.audio_ms,
    gpu_ms              = r.gpu_ms + excluded.gpu_ms,
    milli_units         = r.milli_units + excluded.milli_units,
    first_event_at      = least(r.first_event_at, excluded.first_event_at),
    last_event_at       = greatest(r.last_event_at, excluded.last_event_at),
    events              = r.events + excluded.events
