-- Adds a batch's sums to the exact buckets.
INSERT INTO usage_hour AS u (
    tenant_id, hour, model, endpoint, key_id, requests,
    input_tokens, output_tokens, cached_input_tokens, reasoning_tokens,
    tool_calls, images, audio_ms, gpu_ms, milli_units)
SELECT * FROM unnest(
    $1::text[], $2::timestamptz[], $3::text[], $4::text[], $5::text[], $6::bigint[],
    $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[],
    $11::bigint[], $12::bigint[], $13::bigint[], $14::bigint[], $15::bigint[])
ON CONFLICT (tenant_id, hour, model, endpoint, key_id) DO UPDATE SET
    requests            = u.requests + excluded.requests,
    input_tokens        = u.input_tokens + excluded.input_tokens,
    output_tokens       = u.output_tokens + excluded.output_tokens,
    cached_input_tokens = u.cached_input_tokens + excluded.cached_input_tokens,
    reasoning_tokens    = u.reasoning_tokens + excluded.reasoning_tokens,
    tool_calls          = u.tool_calls + excluded.tool_calls,
    images              = u.images + excluded.images,
    audio_ms            = u.audio_ms + excluded.audio_ms,
    gpu_ms              = u.gpu_ms + excluded.gpu_ms,
    milli_units         = u.milli_units + excluded.milli_units
