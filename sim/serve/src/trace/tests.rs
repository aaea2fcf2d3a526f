//! Readers of traces: rows by hand, faults with their places, and the public files where they are there.

use hw::Time;

use super::*;

fn read_text(format: Format, text: &str) -> Result<Trace, Faults> {
    read(format, &mut text.as_bytes(), 16)
}

/// (line, column) and reason of every fault.
fn faults(format: Format, text: &str) -> Vec<(u64, usize, String)> {
    let faults = read_text(format, text).expect_err("a bad trace");
    faults.found.into_iter().map(|fault| (fault.line, fault.column, fault.reason)).collect()
}

const fn ms(ms: u64) -> Time {
    Time::from_ns(ms * 1_000_000)
}

#[test]
fn every_format_is_read() {
    let azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.5,374,44\n2023-11-16 18:15:50.75,396,109";
    let burst = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,374,44,418,API\n\
                 6,ChatGPT,9,0,9,API\n9.25,GPT-4,396,109,505,API\n";
    let vidur = "arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,374,44\n4.25,396,109\n";
    let openai = "{\"timestamp\": 3, \"usage\": {\"prompt_tokens\": 374, \"completion_tokens\": 44}}\n\
                  {\"timestamp\": 7.25, \"response\": {\"body\": {\"usage\": {\"prompt_tokens\": 396, \"completion_tokens\": 109}}}}\n";
    let expected = [Request::new(ms(0), 374, 44), Request::new(ms(4250), 396, 109)];
    for (format, text) in
        [(Format::Azure, azure), (Format::BurstGpt, burst), (Format::Vidur, vidur), (Format::OpenAi, openai)]
    {
        let trace = read_text(format, text).expect("a good trace");
        assert_eq!(trace.requests.list, expected, "{format:?}");
        assert!(trace.has_arrivals);
        assert_eq!(trace.n_left_out, u64::from(format == Format::BurstGpt), "{format:?}");
    }
}

#[test]
fn a_clock_far_from_its_zero_gives_the_same_arrivals() {
    let rows = |offset: u64| {
        let arrivals = ["0.000000001", "0.25", "7.123456789", "7.123456790", "7999999.5"];
        let shifted = arrivals.map(|at| {
            let (whole, fraction) = at.split_once('.').expect("a point");
            format!("{}.{fraction},5,5\n", whole.parse::<u64>().expect("a number") + offset)
        });
        format!("arrived_at,num_prefill_tokens,num_decode_tokens\n{}", shifted.concat())
    };
    let read = |offset| read_text(Format::Vidur, &rows(offset)).expect("a good trace").requests;
    let near = read(0);
    assert_eq!(near.list[2].arrival, Time::from_ns(7_123_456_788));
    for offset in [1, 1_000_000_000, 1_700_000_000, u64::from(u32::MAX) * 1000] {
        assert_eq!(read(offset), near, "{offset} s");
    }
}

#[test]
fn mooncake_hashes_become_dense_and_the_partial_block_is_left_out() {
    let text = "{\"timestamp\": 100, \"input_length\": 1100, \"output_length\": 5, \"hash_ids\": [70, 80, 90]}\n\n\
                {\"timestamp\": 350, \"input_length\": 1024, \"output_length\": 6, \"hash_ids\": [70, 95]}\n";
    let trace = read_text(Format::Mooncake, text).expect("a good trace");
    let requests = &trace.requests;
    assert_eq!((requests.prefix_tokens, requests.n_prefix_ids), (512, 3));
    assert_eq!(requests.prefix(&requests.list[0]), [0, 1]);
    assert_eq!(requests.prefix(&requests.list[1]), [0, 2]);
    assert_eq!(requests.list[1].arrival, ms(250));
}

#[test]
fn conversations_of_sharegpt_are_estimated_and_a_list_of_them_says_how_to_split_it() {
    // 16 characters are 4 tokens, 9 are 3. The second one has no answer.
    let turns = r#"{"id": "a", "conversations": [{"from": "human", "value": "sixteen letters!"}, {"from": "gpt", "value": "nine char"}]}"#;
    let text = format!("{turns}\n{}\n", r#"{"id": "b", "conversations": [{"from": "human", "value": "hello"}]}"#);
    let trace = read_text(Format::OpenAi, &text).expect("a good trace");
    assert_eq!(trace.requests.list, [Request::new(Time::ZERO, 4, 3)]);
    assert_eq!((trace.n_estimated, trace.n_left_out), (1, 1));
    for format in [Format::OpenAi, Format::Mooncake] {
        let found = faults(format, &format!("[{turns}]"));
        assert!(found.len() == 1 && found[0].2.contains("jq -c"), "{found:?}");
    }
}

#[test]
fn a_batch_file_without_usage_is_estimated() {
    // 16 characters are 4 tokens at 4 characters each; the limit stands for the output.
    let text = "{\"custom_id\": \"a\", \"body\": {\"max_tokens\": 7, \"messages\": [{\"role\": \"user\", \"content\": \"sixteen letters!\"}]}}";
    let trace = read_text(Format::OpenAi, text).expect("a good trace");
    assert_eq!(trace.requests.list, [Request::new(Time::ZERO, 4, 7)]);
    assert_eq!((trace.n_estimated, trace.has_arrivals), (1, false));
}

#[test]
fn every_fault_has_its_line_and_column() {
    let text = "arrived_at,num_prefill_tokens,num_decode_tokens\n1.0,374,44\n0.5,10,10\n2.0,-4,x\n3.0,5\nnan,1,1\n";
    let found = faults(Format::Vidur, text);
    let places: Vec<(u64, usize)> = found.iter().map(|(line, column, _)| (*line, *column)).collect();
    assert_eq!(places, [(3, 1), (4, 5), (4, 8), (5, 6), (6, 1)], "{found:?}");
    assert!(found[0].2.contains("lies before 1 s of line 2"), "{found:?}");
    assert!(found[1].2.contains("`num_prefill_tokens` is `-4`"), "{found:?}");
    assert!(found[3].2.contains("ends before column `num_decode_tokens`"), "{found:?}");
}

#[test]
fn a_missing_column_an_empty_file_and_bad_json_are_named() {
    let found = faults(Format::Azure, "TIMESTAMP,ContextTokens\n2023-11-16 18:15:46,5\n");
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].2.contains("column `GeneratedTokens` is missing; the header has TIMESTAMP, ContextTokens"));
    assert_eq!(faults(Format::Azure, "")[0].2, "the trace holds no request");
    assert_eq!(faults(Format::Vidur, "arrived_at,num_prefill_tokens,num_decode_tokens\n")[0].0, 1);
    let found = faults(Format::Mooncake, "{\"timestamp\": 0, \"input_length\": 5}\n{\"timestamp\": 1,,}\n");
    assert_eq!((found[0].0, found[1].0), (1, 2));
    assert_eq!(found[1].1, 17);
    let found = faults(Format::Mooncake, "{\"timestamp\": -3, \"input_length\": 0, \"output_length\": 2}\n");
    assert_eq!(found.iter().map(|fault| fault.1).collect::<Vec<_>>(), [2, 19]);
}

#[test]
fn an_endless_line_is_refused_without_being_kept() {
    /// So many letters without a line feed.
    struct Letters(u64);
    impl std::io::Read for Letters {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let n = buffer.len().min(usize::try_from(self.0).unwrap_or(usize::MAX));
            buffer[..n].fill(b'7');
            self.0 -= n as u64;
            Ok(n)
        }
    }
    let mut input = std::io::BufReader::new(Letters(40 << 20));
    let found = read(Format::Mooncake, &mut input, 16).expect_err("too long").found;
    assert_eq!(found.len(), 1);
    assert!(found[0].reason.contains("a line of 41943040 bytes"), "{found:?}");
}

#[test]
fn faults_beyond_the_first_hundred_are_counted() {
    let text = "arrived_at,num_prefill_tokens,num_decode_tokens\n".to_owned() + &"1,0,1\n".repeat(250);
    let faults = read_text(Format::Vidur, &text).expect_err("bad rows");
    assert_eq!((faults.found.len(), faults.n_more), (FAULTS_MAX, 150));
}

#[test]
fn public_traces_are_read_whole_where_they_are_there() {
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data/");
    // Rows, mean prompt and mean output as counted by a separate program.
    for (format, path, rows, prompt, output) in [
        (Format::Azure, "azure/AzureLLMInferenceTrace_conv.csv", 19_366, 1154.70, 211.13),
        (Format::Azure, "azure/AzureLLMInferenceTrace_code.csv", 8819, 2047.85, 27.88),
        (Format::Mooncake, "mooncake/conversation_trace.jsonl", 12_031, 12_035.06, 342.62),
        (Format::Vidur, "vidur/processed_traces/splitwise_conv.csv", 19_366, 1154.70, 211.13),
    ] {
        let Ok(file) = std::fs::File::open(format!("{data}{path}")) else {
            println!("skipped: shared data absent ({data}{path})");
            continue;
        };
        let trace = read(format, &mut std::io::BufReader::new(file), 16).expect("a good trace");
        let (prompts, outputs) = trace.requests.tokens();
        let mean = |sum: u64| hw::real(sum) / hw::real(trace.requests.len() as u64);
        assert_eq!(trace.requests.len(), rows, "{path}");
        assert!((mean(prompts) - prompt).abs() < 0.01 && (mean(outputs) - output).abs() < 0.01, "{path}");
    }
}

#[test]
fn images_of_messages_are_counted() {
    let text = r#"{"timestamp": 0, "usage": {"prompt_tokens": 900, "completion_tokens": 10}, "messages": [{"role": "user", "content": [{"type": "text", "text": "what is this?"}, {"type": "image_url", "image_url": {"url": "a.png"}}, {"type": "image_url", "image_url": {"url": "b.png"}}]}]}
{"timestamp": 1, "max_tokens": 5, "messages": [{"role": "user", "content": [{"type": "input_image", "image_url": "c.png"}, {"type": "input_text", "text": "and this?"}]}, {"role": "assistant", "content": "a cat"}]}
{"timestamp": 2, "max_tokens": 5, "messages": [{"role": "user", "content": "nothing to see"}]}
"#;
    let trace = read(Format::OpenAi, &mut text.as_bytes(), 16).expect("a trace");
    let parts = |n, is_counted| ImageParts { n, is_counted };
    assert_eq!(trace.images, [parts(2, true), parts(1, false), parts(0, false)]);
    let plain = r#"{"timestamp": 0, "max_tokens": 5, "prompt": "words"}"#;
    assert!(read(Format::OpenAi, &mut plain.as_bytes(), 16).expect("a trace").images.is_empty());
}

#[test]
fn parts_that_nobody_computes_and_further_answers_are_counted() {
    let text = r#"{"timestamp": 0, "max_tokens": 5, "messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": ""}}, {"type": "text", "text": "what is said?"}]}]}
{"timestamp": 1, "max_tokens": 5, "messages": [{"role": "user", "content": [{"type": "video_url", "video_url": {"url": "a.mp4"}}]}], "n": 4}
{"timestamp": 2, "body": {"max_tokens": 5, "prompt": "words", "n": 1}}
"#;
    let trace = read(Format::OpenAi, &mut text.as_bytes(), 16).expect("a trace");
    assert_eq!((trace.n_with_other_parts, trace.n_with_choices, trace.requests.len()), (2, 1, 3));
}

#[test]
fn rows_of_a_session_are_turns_with_their_recorded_delays() {
    let row = |at: &str, prompt: u32, session: &str| {
        format!("{{{at}\"input_length\": {prompt}, \"output_length\": 5{session}}}\n")
    };
    let text = [
        row("\"timestamp\": 0, ", 10, ", \"session_id\": \"a\""),
        row("\"timestamp\": 500, ", 20, ", \"session_id\": 7"),
        row("", 11, ", \"session_id\": \"a\", \"delay\": 1500"),
        row("\"timestamp\": 900, ", 30, ""),
        row("", 21, ", \"session_id\": 7"),
        row("", 12, ", \"session_id\": \"a\", \"delay\": 250.5"),
    ];
    let found = read(Format::Mooncake, &mut text.concat().as_bytes(), 16).expect("a trace").requests;
    let prompts: Vec<u32> = found.list.iter().map(|request| request.prompt).collect();
    // What was said before comes on top: 10 + 5, and 11 + 5; 20 + 5.
    assert_eq!(prompts, [10, 15 + 11, 31 + 12, 20, 25 + 21, 30]);
    assert_eq!(found.follows, [false, true, true, false, true, false]);
    let pauses: Vec<f64> = (0..6).map(|at| found.pause(at).to_seconds().get()).collect();
    assert_eq!(pauses, [0.0, 1.5, 0.2505, 0.0, 0.0, 0.0]);
    assert_eq!(found.list[3].arrival, Time::from_ns(500_000_000));
    // Rows with hashes name whole prompts. Those without share what was said: 1,030 tokens and 5 are two blocks of 512, and with 500 more three.
    let hashed = row("\"timestamp\": 0, ", 1100, ", \"session_id\": 1, \"hash_ids\": [4, 5, 6]");
    let hashed = hashed + &row("", 1200, ", \"session_id\": 1, \"hash_ids\": [4, 5, 9]");
    let plain = row("\"timestamp\": 5, ", 1030, ", \"session_id\": 2") + &row("", 600, ", \"session_id\": 2");
    let found = read(Format::Mooncake, &mut (hashed + &plain).as_bytes(), 16).expect("a trace").requests;
    let of = |at: usize| (found.list[at].prompt, found.prefix(&found.list[at]).len());
    assert_eq!([0, 1, 2, 3].map(of), [(1100, 2), (1200, 2), (1030, 2), (1635, 3)]);
    let prefix = |at: usize| found.prefix(&found.list[at]);
    assert!(prefix(3).starts_with(prefix(2)) && !prefix(1).contains(&prefix(2)[0]));
    for (line, reason) in [
        (row("\"timestamp\": 1, ", 9, ", \"delay\": 3"), "without `session_id`"),
        (row("\"timestamp\": 1, ", 9, ", \"session_id\": \"b\", \"delay\": -3"), "`delay` is -3"),
        (row("\"timestamp\": 1, ", 9, ", \"session_id\": []"), "`session_id` is []"),
        (row("\"timestamp\": 950, ", 9, ", \"session_id\": \"a\""), "a further turn of a session has `timestamp`"),
        (row("", 9, ", \"session_id\": \"new\""), "has no `timestamp`"),
    ] {
        let faults = read(Format::Mooncake, &mut [&text[0], &line].map(String::as_str).concat().as_bytes(), 16);
        let faults = faults.expect_err("a fault").found;
        assert!(faults[0].line == 2 && faults[0].reason.contains(reason), "{faults:?}");
    }
}

/// Rows that name no prefixes are what a scenario draws: of the same lengths both share the same blocks, and what was said before in whole steps.
#[test]
fn recorded_sessions_without_hashes_share_as_drawn_ones_do() {
    let first = "{\"timestamp\": 0, \"session_id\": 1, \"input_length\": 100, \"output_length\": 100}\n";
    let later = "{\"delay\": 1000, \"session_id\": 1, \"input_length\": 100, \"output_length\": 100}\n";
    for (block_tokens, step) in [(1, 16), (16, 16), (24, 24), (32, 32)] {
        let text = first.to_owned() + &later.repeat(9);
        let found = read(Format::Mooncake, &mut text.as_bytes(), block_tokens).expect("a trace").requests;
        let plain = Requests::of((0..10).map(|_| Request::new(Time::ZERO, 100, 100)).collect());
        let drawn = crate::sessions::Sessions { turns: 1e9, system: 0, context_max: 1 << 20, block_tokens };
        let drawn = drawn.lay(&plain, 1);
        let of = |requests: &Requests, at: usize| {
            let request = requests.list[at];
            (request.prompt, requests.prefix(&request).to_vec())
        };
        assert_eq!(found.prefix_tokens, step);
        for at in 0..10 {
            assert_eq!(of(&found, at), of(&drawn, at), "turn {at} with blocks of {block_tokens}");
            let known = at.checked_sub(1).map_or(0, |before| {
                let (_, before) = of(&found, before);
                of(&found, at).1.iter().zip(&before).take_while(|(a, b)| a == b).count()
            });
            assert_eq!(known as u32, 200 * at as u32 / step, "turn {at} with blocks of {block_tokens}");
        }
    }
}
