/* device_calls -- the arguments of each op behind the device, by the names that OPS gives them: for devices
 * that stand before another one and pass its calls on. With #define X(name, args) static void my_##name args
 * { ...; other.name(d, CALL_##name); ... } OPS(X) each op of such a device is one line. */
#ifndef DEVICE_CALLS_H
#define DEVICE_CALLS_H
#define CALL_copy dst, src
#define CALL_zero p, bytes
#define CALL_add y, a, b
#define CALL_sum_parts y, parts
#define CALL_matmul c, a, ta, b, tb, acc
#define CALL_linear y, x, w, bias
#define CALL_bias_bwd db, dy
#define CALL_linear_act_fwd a, h, x, w, bias, kind
#define CALL_linear_act_bwd_x dh, da, dy, w, h, kind
#define CALL_linear_bwd_w dw, db, dy, x
#define CALL_fp8_cast y, yt, x, s, format, delayed
#define CALL_fp8_matmul c, a, b, bias, acc
#define CALL_fp8_next s, n, length, most_recent
#define CALL_norm_fwd y, stats, x, gain, bias, eps, kind, groups
#define CALL_add_norm_fwd y, ln, stats, x, res, s, gain, bias, eps, kind
#define CALL_norm_bwd_x dx, dres, dy, x, stats, gain, kind, groups
#define CALL_norm_bwd_w dgain, dbias, dy, x, stats, kind, groups
#define CALL_act_fwd a, h, kind
#define CALL_act_bwd dh, da, h, kind
#define CALL_rope x, dim, table, position, inverse
#define CALL_attention_fwd o, lse, q, k, v, s
#define CALL_attention_bwd dq, dk, dv, dout, o, lse, delta, q, k, v, s
#define CALL_embed_fwd y, token, position, wte, v0, wpe
#define CALL_embed_bwd dwte, v0, dwpe, dy, token, position
#define CALL_dropout_fwd y, x, res, s
#define CALL_dropout_bwd dx, dy, s
#define CALL_xent_stats stats, logits, label, rows, v0, valid
#define CALL_xent_combine stats, parts
#define CALL_xent_grad loss, dlogits, logits, stats, label, mask, rows, v0, valid, scale
#define CALL_xent loss, dlogits, logits, stats, label, mask, rows, valid, scale
#define CALL_sum out, x
#define CALL_squares list, count, type
#define CALL_carry s, n
#define CALL_verdict v, sums, squares, nominal, loss_scale, clip_grad, stop
#define CALL_trust trust, norms, n, lars, coefficient, wd, v
#define CALL_adam u
#define CALL_sgd u
#define CALL_lamb_direction u
#define CALL_lamb_apply u
#define CALL_lars u
#endif
