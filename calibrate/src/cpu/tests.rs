//! Kernels against references, streams in order, and what is refused.

use engine::task::{Collective, CopyKind, Document, Pass, PassKind};
use hw::{Format, GroupShape};

use super::*;

fn cpu() -> Cpu {
    Cpu::open("cpu:1", Some(1)).expect("a core")
}

const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn every_kernel_agrees_with_its_reference() {
    let lines = cpu().check_kernels().unwrap_or_else(|error| panic!("{error}"));
    assert!(lines.len() >= 15, "{lines:?}");
}

#[test]
fn every_operation_writes_all_of_its_result() {
    let mut cpu = cpu();
    let shape = GroupShape::inside(3);
    let attention = |pass| Op::Attention {
        documents: vec![Document::causal(70); 2],
        n_heads: 2,
        n_kv_heads: 1,
        head_dim: 32,
        kv: hw::Dtype::Bf16,
        pass,
    };
    let mut ops = vec![
        Op::Gemm { m: 33, n: 17, k: 5, format: Format::Bf16 },
        Op::GroupedGemm { rows: vec![3, 0, 9], n: 8, k: 4, format: Format::Bf16, kind: PassKind::Forward },
        Op::Elementwise { bytes: 1001 },
        Op::Embedding { tokens: 9, row_bytes: 64 },
        Op::Copy { kind: CopyKind::HostToDevice, bytes: 999 },
        attention(Pass::Forward),
        attention(Pass::Backward),
    ];
    for kind in [
        Collective::AllGather,
        Collective::ReduceScatter,
        Collective::AllReduce,
        Collective::AllToAll,
        Collective::RingShift,
    ] {
        ops.push(Op::Collective { kind, bytes: 1000, shape });
    }
    for op in &ops {
        cpu.check_finite(op).unwrap_or_else(|error| panic!("{}: {error}", describe(op)));
    }
}

#[test]
fn streams_run_in_order_and_wait_for_marks() {
    let mut cpu = cpu();
    let host = |us: u64| Op::Host { ns: us * 1000 };
    let begun = cpu.mark(Stream::Compute).expect("a stream");
    cpu.launch(&host(2000), Stream::Compute).expect("a stream");
    let half = cpu.mark(Stream::Compute).expect("a stream");
    cpu.wait(Stream::DeviceToHost, half).expect("a stream");
    cpu.launch(&host(1000), Stream::DeviceToHost).expect("a stream");
    let copied = cpu.mark(Stream::DeviceToHost).expect("a stream");
    let times = cpu.finish(LIMIT).expect("ends");
    assert_eq!(times.len(), 3);
    assert!(times[half.0] >= times[begun.0] + 2_000_000 && times[copied.0] >= times[half.0] + 1_000_000, "{times:?}");
    // Marks start over.
    assert_eq!(cpu.mark(Stream::Compute).expect("a stream"), Mark(0));
    assert_eq!(cpu.finish(LIMIT).expect("ends").len(), 1);
}

#[test]
fn faults_are_named() {
    let too_many = Cpu::open("cpu:9999", Some(9999)).err().expect("fewer cores").to_string();
    assert!(too_many.contains("`cpu:9999`") && too_many.contains("cores"), "{too_many}");
    let mut cpu = cpu();
    let huge = Op::Gemm { m: 1 << 30, n: 8, k: 1 << 12, format: Format::Bf16 };
    let error = cpu.reserve(&huge).expect_err("4 TiB");
    assert!(matches!(&error, DeviceError::OutOfMemory { tensor: "operands", .. }), "{error}");
    cpu.launch(&Op::Host { ns: 3_000_000_000 }, Stream::Compute).expect("a stream");
    let error = cpu.finish(Duration::from_millis(10)).expect_err("three seconds");
    assert!(error.to_string().contains("watchdog") && error.to_string().contains("host time"), "{error}");
}
