-- Adds what fell late into closed hours to the rolling sums.
INSERT INTO usage_30d AS u (
    tenant_id, requests,
    input_tokens, output_tokens, cached_input_tokens, reasoning_tokens,
    tool_calls, images, audio_ms, gpu_ms, milli_units)
SELECT * FROM unnest(
    $1::text[], $2::bigint[],
    $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[],
    $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[])
ON CONFLICT (tenant_id) DO UPDATE SET
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
