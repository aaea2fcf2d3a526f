//! Requests of a server: those of the script's client; where there is none, some stand for them. Both give way to what the command line states.

use input::diagnostic::Code;

use crate::Machine;
use crate::client::Asked;
use crate::document::Document;
use crate::flags::Flags;

/// What the command line states of requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    /// Whether it says which requests there are.
    has_requests: bool,
    /// Whether it says when they arrive.
    has_arrivals: bool,
    /// Whether they arrive by a rate.
    has_rate: bool,
    /// Whether the rate is stated.
    states_rate: bool,
    /// What the script's client asks for.
    pub(crate) client: Option<Asked>,
}

/// Keys that say which requests there are.
const REQUESTS: [&str; 3] = ["trace.file", "trace.prompt_tokens", "trace.lengths"];
/// Keys that say when they arrive, and leave no room for another way.
const ARRIVALS: [&str; 3] = ["trace.arrivals", "trace.concurrency", "trace.file"];
/// Words of `trace.arrivals` without a rate.
const WITHOUT_RATE: [&str; 3] = ["together", "held", "replay"];

impl Load {
    /// Nothing is stated.
    pub(crate) const NOTHING: Self =
        Self { has_requests: false, has_arrivals: false, has_rate: true, states_rate: false, client: None };

    /// What overrides state.
    pub(crate) fn of(machine: &Machine) -> Self {
        let is_without = machine.arrivals.as_deref().is_some_and(|word| WITHOUT_RATE.contains(&word));
        let is_other = machine.states(&["trace.concurrency", "trace.file", "trace.schedule"]);
        Self {
            has_requests: machine.states(&REQUESTS),
            has_arrivals: machine.states(&ARRIVALS),
            has_rate: !is_without && !is_other,
            states_rate: machine.states(&["trace.rate_per_s"]),
            client: None,
        }
    }

    /// Writes what the command line does not state.
    pub(crate) fn write(&self, flags: &mut Flags<'_>, out: &mut Document) {
        let taken = match &self.client {
            Some(client) => self.write_client(client, out),
            None => self.write_usual(out),
        };
        if !taken.is_empty() {
            let what = format!("a command says nothing of requests: {} are taken", taken.join(" "));
            let help = "give `--set trace.rate_per_s=…`, `--set trace.lengths=…` or a trace of your own";
            flags.warn(Code::MissingFlag, None, what, help);
        }
    }

    /// Writes what stands for requests of which nobody says anything. Gives it in words.
    fn write_usual(&self, out: &mut Document) -> Vec<&'static str> {
        let mut taken = Vec::new();
        if !self.has_requests {
            out.word("trace", "lengths", "azure-conv", "stands for your requests: nothing in a command says them");
            out.set("trace", "requests", 1000, "");
            taken.push("1,000 of `azure-conv`");
        }
        if !self.has_arrivals {
            out.word("trace", "arrivals", "poisson", "");
        }
        if self.has_rate {
            out.set("trace", "rate_per_s", "1.0", "");
            taken.push("at one a second");
        }
        taken
    }

    /// Writes what the client asks for. Where the command line states arrivals with a rate and the client has none, one stands for it.
    fn write_client(&self, client: &Asked, out: &mut Document) -> Vec<&'static str> {
        for (key, value, remark) in &client.keys {
            out.set("trace", key, value, remark.clone());
        }
        let needs_rate = self.has_arrivals && self.has_rate && !self.states_rate && !client.gives("rate_per_s");
        if !needs_rate {
            return Vec::new();
        }
        out.set("trace", "rate_per_s", "1.0", "");
        vec!["those of the client at one a second"]
    }
}

#[cfg(test)]
mod tests {
    use crate::{Machine, import, recognise};

    #[test]
    fn requests_that_stand_for_others_give_way() {
        let text = "vllm serve meta-llama/Llama-3.1-8B-Instruct";
        for (set, has, has_not) in [
            ("trace.rate_per_s=3", vec!["lengths", "arrivals", "rate_per_s"], vec![]),
            ("trace.concurrency=8", vec!["lengths", "requests"], vec!["arrivals", "rate_per_s"]),
            ("trace.arrivals=\"together\"", vec!["lengths", "requests"], vec!["arrivals", "rate_per_s"]),
            ("trace.arrivals=gamma", vec!["rate_per_s"], vec!["arrivals"]),
            ("trace.file=mine.csv", vec![], vec!["lengths", "arrivals", "rate_per_s", "requests"]),
        ] {
            let machine = Machine::of_overrides(&["cluster.gpu=h200-sxm".to_owned(), set.to_owned()]);
            let scenario = import(recognise(text).expect("a server"), text, &machine).scenario;
            for key in has {
                assert!(scenario.contains(&format!("\n{key} = ")), "{set}: {key} in {scenario}");
            }
            for key in has_not {
                assert!(!scenario.contains(&format!("\n{key} = ")), "{set}: {key} in {scenario}");
            }
        }
    }
}
