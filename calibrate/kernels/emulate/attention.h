// Packed documents and the float64 attention that the attention harnesses compare with.
#pragma once
#include "check.h"

#include <algorithm>

namespace check {

struct Document {
  int queries, keys;
};

// A case: documents, heads, head dimension, and the cumulative lengths that the kernels take.
struct Packed {
  Packed(std::vector<Document> documents, int heads, int kv_heads, int d, bool causal = true)
      : documents(std::move(documents)),
        heads(heads),
        kv_heads(kv_heads),
        d(d),
        causal(causal),
        cu_q(this->documents.size() + 1),
        cu_k(this->documents.size() + 1) {
    cu_q[0] = cu_k[0] = 0;
    for (size_t i = 0; i < this->documents.size(); ++i) {
      cu_q[i + 1] = cu_q[i] + this->documents[i].queries;
      cu_k[i + 1] = cu_k[i] + this->documents[i].keys;
    }
  }
  int queries() { return cu_q[documents.size()]; }
  int keys() { return cu_k[documents.size()]; }
  size_t q_at(int query, int head) const { return (size_t(query) * heads + head) * d; }
  size_t kv_at(int key, int head) const { return (size_t(key) * kv_heads + head / (heads / kv_heads)) * d; }
  float scale() const { return 1.0f / std::sqrt(float(d)); }
  std::string name() const {
    std::string text = "d " + std::to_string(d) + ", heads " + std::to_string(heads) + "/" + std::to_string(kv_heads);
    text += causal ? ", causal" : ", full";
    for (const Document& x : documents) text += " " + std::to_string(x.queries) + ":" + std::to_string(x.keys);
    return text;
  }
  // Tiles of `size` queries of every document, the ones with the most keys first.
  Buffer<int2> tiles(int size) {
    std::vector<std::pair<int, int2>> list;
    for (size_t i = 0; i < documents.size(); ++i)
      for (int first = 0; first < documents[i].queries; first += size)
        list.push_back({first + documents[i].keys - documents[i].queries, int2{int(i), first}});
    std::stable_sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    Buffer<int2> result(list.size());
    for (size_t i = 0; i < list.size(); ++i) result[i] = list[i].second;
    return result;
  }

  std::vector<Document> documents;
  int heads, kv_heads, d;
  bool causal;
  Buffer<int> cu_q, cu_k;
};

// Calls use(document, query, head, weights): normalised weights over the document's keys, 0 where masked; and the lse.
template <typename Visible, typename Use>
void for_each_row(Packed& p, Buffer<bf16>& q, Buffer<bf16>& k, Visible visible, Use use) {
  std::vector<double> weights;
  for (size_t doc = 0; doc < p.documents.size(); ++doc)
    for (int r = 0; r < p.documents[doc].queries; ++r)
      for (int head = 0; head < p.heads; ++head) {
        const int keys = p.documents[doc].keys, sees = p.causal ? r + keys - p.documents[doc].queries : keys - 1;
        weights.assign(keys, -INFINITY);
        double top = -INFINITY, sum = 0;
        for (int j = 0; j <= sees && j < keys; ++j) {
          if (!visible(head, r + keys - p.documents[doc].queries, j)) continue;
          double dot = 0;
          const bf16 *a = &q[p.q_at(p.cu_q[doc] + r, head)], *b = &k[p.kv_at(p.cu_k[doc] + j, head)];
          for (int c = 0; c < p.d; ++c) dot += value_of(a[c]) * value_of(b[c]);
          weights[j] = dot * p.scale();
          top = std::max(top, weights[j]);
        }
        for (double& w : weights) sum += w = top == -INFINITY ? 0.0 : std::exp(w - top);
        for (double& w : weights) w = sum > 0 ? w / sum : 0.0;
        use(int(doc), p.cu_q[doc] + r, head, weights, top + std::log(sum));
      }
}

template <typename Visible>
void reference_attention(Packed& p, Buffer<bf16>& q, Buffer<bf16>& k, Buffer<bf16>& v, Visible visible,
                         std::vector<double>& out, std::vector<double>& lse) {
  out.assign(p.q_at(p.queries(), 0), 0.0);
  lse.assign(size_t(p.heads) * p.queries(), 0.0);
  for_each_row(p, q, k, visible, [&](int doc, int query, int head, const std::vector<double>& weights, double row_lse) {
    for (size_t j = 0; j < weights.size(); ++j)
      for (int c = 0; c < p.d && weights[j] > 0; ++c)
        out[p.q_at(query, head) + c] += weights[j] * value_of(v[p.kv_at(p.cu_k[doc] + int(j), head) + c]);
    lse[size_t(head) * p.queries() + query] = row_lse;
  });
}

inline bool everything(int, int, int) { return true; }

// Rows that see no key have an lse of minus infinity on both sides; they are checked here and left out of the norm.
inline bool same_empty_rows(Buffer<float>& lse, std::vector<double>& reference) {
  bool good = true;
  for (size_t i = 0; i < reference.size(); ++i)
    if (std::isinf(reference[i]) || std::isnan(reference[i])) {
      good &= lse[i] == -INFINITY;
      reference[i] = lse[i] = 0;
    }
  return good;
}

}  // namespace check
