// Runs the kernels of decode.cu on the CPU against float64.
#include "attention.h"
#include "../decode.cu"

using namespace check;

// Queries against caches of `lengths`, in one piece and in shuffled pages, merged from `splits` parts.
static void decode_case(std::vector<int> lengths, int heads, int kv_heads, int d, int splits, int page_size) {
  std::vector<Document> documents;
  for (int length : lengths) documents.push_back({1, length});
  Packed p(documents, heads, kv_heads, d);
  const int sequences = int(lengths.size()), rows = sequences * heads, token = kv_heads * d;
  auto q = random_bf16(p.q_at(sequences, 0), 1.5f), k = random_bf16(p.kv_at(p.keys(), 0), 1.5f),
       v = random_bf16(p.kv_at(p.keys(), 0));
  std::vector<double> out_ref, lse_ref;
  reference_attention(p, q, k, v, everything, out_ref, lse_ref);
  std::vector<double> lse_rows(rows);
  for (int s = 0; s < sequences; ++s)
    for (int h = 0; h < heads; ++h) lse_rows[s * heads + h] = lse_ref[size_t(h) * sequences + s];
  // Pages in an order of their own; what no token fills keeps its NaNs.
  const int pages_max = ceil_div(*std::max_element(lengths.begin(), lengths.end()), page_size),
            pages = pages_max * sequences;
  std::vector<int> order(pages);
  for (int i = 0; i < pages; ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), generator);
  Buffer<int> table(pages), size(sequences);
  Buffer<bf16> k_pages(size_t(pages) * page_size * token), v_pages(size_t(pages) * page_size * token);
  for (int i = 0; i < pages; ++i) table[i] = order[i];
  for (int s = 0; s < sequences; ++s) {
    size[s] = lengths[s];
    for (int i = 0; i < lengths[s]; ++i) {
      const size_t to = size_t(table[s * pages_max + i / page_size]) * page_size + i % page_size, from = p.cu_k[s] + i;
      std::memcpy(&k_pages[to * token], &k[from * token], size_t(token) * 2);
      std::memcpy(&v_pages[to * token], &v[from * token], size_t(token) * 2);
    }
  }
  for (bool paged : {false, true}) {
    Buffer<float> parts(size_t(splits) * rows * d), maxima(size_t(splits) * rows), sums(size_t(splits) * rows),
        lse(rows);
    Buffer<bf16> out(out_ref.size());
    const auto kernel = paged ? (d == 128 ? decode_paged_128 : decode_paged_64) : (d == 128 ? decode_128 : decode_64);
    emulate::launch(kernel, dim3(kv_heads, splits, sequences), THREADS, size_t(WARPS) * STAGES * 2 * BLOCK * d * 2,
                    q.get(), paged ? k_pages.get() : k.get(), paged ? v_pages.get() : v.get(), size.get(),
                    paged ? table.get() : p.cu_k.get(), parts.get(), maxima.get(), sums.get(), pages_max, page_size,
                    heads, kv_heads, p.scale());
    emulate::launch(decode_merge, dim3(ceil_div(rows * d / 4, THREADS)), THREADS, 0,
                    reinterpret_cast<float4*>(parts.get()), maxima.get(), sums.get(),
                    reinterpret_cast<uint2*>(out.get()), lse.get(), splits, rows, d);
    auto finite = lse_rows;
    expect("sequences without keys", same_empty_rows(lse, finite));
    const std::string name = (paged ? " paged, " : " contiguous, ") + std::to_string(splits) + " splits, " + p.name();
    compare("decode" + name, out, out_ref, BF16_LIMIT);
    compare("decode lse" + name, lse, finite, F32_LIMIT);
  }
}

int main() {
  decode_case({300, 1, 129, 64}, 8, 2, 128, 3, 16);
  decode_case({77, 500}, 16, 1, 64, 2, 48);
  decode_case({200, 0, 5}, 3, 3, 128, 1, 32);
  decode_case({100, 259}, 10, 2, 64, 5, 64);
  return finish();
}
