SELECT event_id, kind, tenant_id, reservation_id, request_id, pool, model,
       from_time, to_time, input_tokens, output_tokens, gpu_ms, final
FROM meter_readings WHERE event_id = ANY ($1)
