//! Images of prompts: each is encoded once, in the iteration that first needs it, within a budget; what is cached needs no encoder.

use super::*;
use crate::request::Placed;
use crate::sessions::Sessions;
use engine::model::Image;

/// Seconds of an iteration, of a token and of a patch.
const LAW: [f64; 3] = [1e-3, 1e-2, 1e-4];

fn seeing(batcher: &str, kv_blocks: u32, spans: Spans) -> Engine {
    let mut engine = engine(batcher, kv_blocks, Preemption::Recompute, spans);
    let table = StepTable::linear(Seconds::new(LAW[0]), Seconds::new(LAW[1]), Seconds::ZERO);
    engine.table = table.encoding_at(Seconds::new(LAW[2]));
    if ["vllm-v0", "trtllm"].contains(&batcher) {
        engine.limits.tokens_max = 256;
    }
    engine
}

fn image(tokens: u32) -> Image {
    Image { tokens, marks: 2, patches: 4 * tokens, tiles: 1 }
}

/// Puts images of so many tokens behind the text of every prompt.
fn with_images(mut requests: Requests, tokens: &[u32]) -> Requests {
    for request in &mut requests.list {
        request.image_first = u32::try_from(requests.images.len()).expect("few");
        request.image_count = u32::try_from(tokens.len()).expect("few");
        for &tokens in tokens {
            requests.images.push(Placed { at: request.prompt, image: image(tokens) });
            request.prompt += tokens;
        }
    }
    requests
}

fn one(text: u32, images: &[u32]) -> Requests {
    with_images(Requests::of(vec![Request::new(Time::ZERO, text, 1)]), images)
}

fn ttft_s(requests: &Requests, engine: &Engine) -> (f64, Served) {
    let served = run(requests, engine);
    let first = served.records.list[0].first_token().expect("served");
    ((first - requests.list[0].arrival).to_seconds().get(), served)
}

#[test]
fn an_image_is_encoded_once_before_its_tokens() {
    // 20 tokens of text and 100 of an image in chunks of 64: it is encoded with the first of two.
    let (found, served) = ttft_s(&one(20, &[100]), &seeing("vllm-v1", 1000, Spans::Closed));
    let expected = 2.0 * LAW[0] + 120.0 * LAW[1] + 400.0 * LAW[2];
    assert!((found - expected).abs() < 1e-9, "{found} s of {expected} s");
    let counts = served.counts[0];
    assert_eq!((counts.n_images, counts.image_tokens, counts.n_steps), (1, 100, 2));
    assert!((counts.encode_ticks.to_seconds() - 0.04).abs() < 1e-9);
}

#[test]
fn a_chunk_ends_before_an_image_that_is_beyond_the_budget() {
    // Images of 40 tokens at 8, 48 and 88, 64 tokens in an iteration: only one of them may be encoded in each.
    let requests = one(8, &[40, 40, 40]);
    let steps = |batcher: &str| ttft_s(&requests, &seeing(batcher, 1000, Spans::Closed)).1.counts[0].n_steps;
    assert_eq!(steps("vllm-v1"), 3);
    // Without images the same prompt takes two; who computes whole prompts encodes all at once.
    assert_eq!(ttft_s(&one(128, &[]), &seeing("vllm-v1", 1000, Spans::Closed)).1.counts[0].n_steps, 2);
    assert_eq!(steps("vllm-v0"), 1);
    // The largest image is encoded whatever the budget is.
    let mut engine = seeing("vllm-v1", 1000, Spans::Closed);
    engine.limits.image_tokens_max = 80;
    assert_eq!(ttft_s(&requests, &engine).1.counts[0].n_steps, 2);
}

#[test]
fn two_prompts_share_the_budget_of_an_iteration() {
    let twice = vec![Request::new(Time::ZERO, 4, 1); 2];
    let requests = with_images(Requests::of(twice), &[26]);
    let mut engine = seeing("vllm-v1", 1000, Spans::Closed);
    engine.limits.tokens_max = 40;
    engine.limits.sequences_max = 2;
    // The second has four tokens of text beside the first; its image waits.
    let served = run(&requests, &engine);
    assert_eq!((served.counts[0].n_steps, served.counts[0].n_images), (2, 2));
    let at = |index: usize| served.records.list[index].first_token().expect("served");
    assert!(at(0) < at(1));
}

#[test]
fn images_of_earlier_turns_are_cached_with_their_tokens() {
    let turn = Request::new(Time::ZERO, 16, 24);
    let turns = with_images(Requests::of(vec![turn; 3]), &[32]);
    let sessions = Sessions { turns: 1e9, system: 0, context_max: 100_000, block_tokens: 8 };
    let mut requests = sessions.lay(&turns, 1);
    // The third turn has three images, each where its turn put it.
    let places =
        |index: usize| requests.images_of(&requests.list[index]).iter().map(|placed| placed.at).collect::<Vec<_>>();
    assert_eq!(places(2), [16, 72 + 16, 144 + 16]);
    for (index, request) in requests.list.iter_mut().enumerate() {
        request.arrival = Time::from_ns(index as u64 * 1_000_000_000_000);
    }
    let mut engine = seeing("vllm-v1", 1000, Spans::Closed);
    let n_images = |engine: &Engine| run(&requests, engine).counts[0].n_images;
    assert_eq!(n_images(&engine), 3);
    engine.limits.shares_prefixes = false;
    assert_eq!(n_images(&engine), 1 + 2 + 3);
}

#[test]
fn spans_are_single_steps_and_everybody_is_served_with_images() {
    for batcher in ["vllm-v1", "sarathi", "sglang", "trtllm", "vllm-v0"] {
        for (seed, kv_blocks) in [(0, 1000), (1, 30), (2, 24)] {
            let requests = with_images(requests(300, 3.0, seed, seed == 1), &[20, 30]);
            let closed = run(&requests, &seeing(batcher, kv_blocks, Spans::Closed));
            let stepwise = run(&requests, &seeing(batcher, kv_blocks, Spans::Stepwise));
            assert_eq!(closed.records, stepwise.records, "{batcher}, seed {seed}");
            let [counts, single] = [closed.counts[0], stepwise.counts[0]];
            assert_eq!((counts.n_images, counts.encode_ticks), (single.n_images, single.encode_ticks));
            assert_eq!(closed.n_refused, 0);
            assert!(counts.n_images >= 600, "{} of 600 images, again after preemptions", counts.n_images);
            assert!(kv_blocks < 1000 || counts.n_images == 600);
            assert!(counts.encode_ticks < counts.busy_ticks);
        }
    }
}

#[test]
fn requests_of_text_know_of_no_encoder() {
    let requests = requests(300, 20.0, 3, true);
    let with = seeing("vllm-v1", 40, Spans::Closed);
    let mut without = with.clone();
    without.table = StepTable::linear(Seconds::new(LAW[0]), Seconds::new(LAW[1]), Seconds::ZERO);
    let (with, without) = (run(&requests, &with), run(&requests, &without));
    assert_eq!((with.records, with.counts), (without.records, without.counts));
}

/// Requests that come together while a prompt of text is computed.
fn behind_text(mut requests: Requests) -> Requests {
    requests.list.iter_mut().for_each(|request| request.arrival = Time::from_ns(1));
    requests.list.insert(0, Request::new(Time::ZERO, 4, 1));
    requests
}

#[test]
fn ranks_encode_the_images_of_their_own_prompts_at_once() {
    use crate::step_cost::lanes::Lanes;
    let on_ranks = |requests: &Requests, ranks| {
        let mut engine = seeing("vllm-v1", 1000, Spans::Closed);
        engine.table = engine.table.in_lanes(Lanes { stages: 1, ranks }, 64);
        run(requests, &engine).counts[0]
    };
    let two_prompts =
        |tokens| behind_text(with_images(Requests::of(vec![Request::new(Time::ZERO, 4, 1); 2]), &[tokens]));
    let one_prompt = behind_text(one(4, &[25, 25]));
    for (requests, ranks, n_in_turn) in [(&two_prompts(25), 1, 2.0), (&two_prompts(25), 2, 1.0), (&one_prompt, 2, 2.0)]
    {
        let counts = on_ranks(requests, ranks);
        let found = counts.encode_ticks.to_seconds();
        assert!((found - n_in_turn * 100.0 * LAW[2]).abs() < 1e-9, "{ranks} ranks: {found} s");
        assert_eq!(counts.n_images, 2);
    }
    // Each rank has a budget of its own: two images of 40 tokens fit 64 on each of two ranks, and not on one.
    let steps = |ranks| on_ranks(&two_prompts(40), ranks).n_steps;
    assert_eq!([steps(1), steps(2)], [3, 2]);
}
