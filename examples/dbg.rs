use engine::cost::CostModel;
use engine::cost::profile::Profile;
use engine::cost::profiled::Profiled;
use engine::layer;
use engine::shard::ExpertLoad;
use engine::task::{PassKind, Op, Document, Pass, Collective};
use engine::play::Case;
use serve::step_cost::{ReplicaConfig, StepTable, StepLoad, Chunk};
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let (name, gpu, engine, tp, fmt) = (&a[1], &a[2], &a[3], a[4].parse::<u32>().unwrap(), &a[5]);
    let model = engine::model::embedded(name).unwrap();
    let gpu = hw::catalog::gpu(gpu).unwrap();
    let cluster = hw::catalog::cluster(&gpu, 1, 8);
    let p = Profile::parse(calibrate::profiles::embedded(calibrate::profiles::of_engine(&gpu.name, engine).unwrap()).unwrap()).unwrap();
    let cost = Profiled::new(&p, &cluster);
    let mut config = ReplicaConfig::new(&model, &cluster, tp);
    let f = hw::Format::of_word(fmt).unwrap();
    config.formats = engine::formats::Formats::weights(f, hw::Dtype::Bf16);
    if a.len() > 6 { config.formats.attention = hw::Format::Bf16; config.formats.dense = hw::Format::Bf16; }
    let shard = config.shard();
    for m in [1u64, 8, 64, 256, 2048, 8192] {
        println!("== m {m}");
        let mut ops = layer::before_attention(&shard, m, PassKind::Forward);
        let load = model.experts.as_ref().map(|_| &ExpertLoad::EVEN);
        ops.extend(layer::after_attention(&shard, m, PassKind::Forward, load));
        if tp > 1 { ops.push((Op::Collective { kind: Collective::AllReduce, bytes: m * model.hidden * 2, shape: config.tensor_shape() }, 2)); }
        ops.extend(layer::attention(&shard, &[Document::causal(m)], 1, Pass::Forward));
        for (op, n) in &ops {
            let e = cost.engine(op).unwrap_or_else(|| cost.estimate(op));
            let text = format!("{op:?}");
            println!("  {:8.2} us x{n} {:?} {} {}", e.time.get() * 1e6, e.source, e.dimension.unwrap_or(""), &text[..text.len().min(110)]);
        }
    }
    let t = StepTable::new(&config, (16384, 512), &cost, Case::Expected);
    for n in [1u32, 8, 64, 256] {
        let load = StepLoad { n_decode: n, context: u64::from(n) * 2000, n_sampled: n, ..Default::default() };
        println!("decode {n} x 2000: {:.3} ms", t.step(&load, std::iter::empty()) as f64 / 1024e6);
    }
    for m in [1024u32, 8192] {
        let load = StepLoad { n_chunk_tokens: m, n_chunks: 1, n_sampled: 1, ..Default::default() };
        println!("prefill {m}: {:.3} ms", t.step(&load, [Chunk { past: 0, new: m }].into_iter()) as f64 / 1024e6);
    }
}
