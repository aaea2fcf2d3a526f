//! Requests of a server: those of the script's client; where there is none, some stand for them. Both give way to what the command line states.

use input::diagnostic::Code;

use crate::Machine;
use crate::client::Asked;
use crate::client::drawn::Drawn;
use crate::document::Document;
use crate::flags::Flags;

/// What the command line states of requests.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Load {
    /// Whether it says which requests there are.
    has_requests: bool,
    /// Whether it says when they arrive.
    has_arrivals: bool,
    /// Whether they arrive by a rate.
    has_rate: bool,
    /// Whether the rate is stated.
    states_rate: bool,
    /// Whether it says how many requests there are.
    states_count: bool,
    /// Whether it says how tokens are drawn.
    states_draw: bool,
    /// Whether the model is that of a file, beside which another one may say how tokens are drawn.
    has_file: bool,
    /// What the script's client asks for.
    pub(crate) client: Option<Asked>,
}

/// Keys that say which requests there are.
const REQUESTS: [&str; 3] = ["trace.file", "trace.prompt_tokens", "trace.lengths"];
/// Keys that say when they arrive, and leave no room for another way.
const ARRIVALS: [&str; 3] = ["trace.arrivals", "trace.concurrency", "trace.file"];
/// Keys that say how tokens are drawn: a trace of one's own says all.
const DRAWS: [&str; 3] = ["trace.sampling", "trace.file", "trace.stream"];
/// Words of `trace.arrivals` without a rate.
const WITHOUT_RATE: [&str; 3] = ["together", "held", "replay"];

impl Load {
    /// Nothing is stated.
    pub(crate) const NOTHING: Self = Self {
        has_requests: false,
        has_arrivals: false,
        has_rate: true,
        states_rate: false,
        states_count: false,
        states_draw: false,
        has_file: false,
        client: None,
    };

    /// What overrides state.
    pub(crate) fn of(machine: &Machine) -> Self {
        let is_without = machine.arrivals.as_deref().is_some_and(|word| WITHOUT_RATE.contains(&word));
        let is_other = machine.states(&["trace.concurrency", "trace.file", "trace.schedule"]);
        Self {
            has_requests: machine.states(&REQUESTS),
            has_arrivals: machine.states(&ARRIVALS),
            has_rate: !is_without && !is_other,
            states_rate: machine.states(&["trace.rate_per_s"]),
            states_count: machine.states(&["trace.requests"]),
            states_draw: machine.states(&DRAWS),
            has_file: machine.states(&["model.config"]),
            client: None,
        }
    }

    /// Writes what the command line does not state.
    pub(crate) fn write(&self, flags: &mut Flags<'_>, out: &mut Document) {
        let taken = match &self.client {
            Some(client) => self.write_client(client, out),
            None => self.write_usual(out),
        };
        if !self.states_draw {
            self.write_draw(flags, out);
        }
        if !taken.is_empty() {
            let what = format!("a command says nothing of requests: {} are taken", taken.join(" "));
            let rate = if self.states_rate { "" } else { "`--set trace.rate_per_s=…`, " };
            let help = format!("give {rate}`--set trace.lengths=…` or a trace of your own");
            flags.warn(Code::MissingFlag, None, what, help);
        }
    }

    /// Writes how tokens are drawn: as requests say it, else as the server does.
    fn write_draw(&self, flags: &mut Flags<'_>, out: &mut Document) {
        let mut of_server = Drawn::of_server(flags);
        if self.has_file {
            of_server = of_server.without_file(flags);
        }
        let nobody = Drawn::default();
        let of_requests = self.client.as_ref().map_or(&nobody, |client| &client.drawn);
        if let Some((table, remark)) = of_requests.table(&of_server, self.has_file) {
            out.set("trace", "sampling", table, remark);
        }
    }

    /// Writes what stands for requests of which nobody says anything. Gives it in words.
    fn write_usual(&self, out: &mut Document) -> Vec<&'static str> {
        let mut taken = Vec::new();
        if !self.has_requests {
            out.word("trace", "lengths", "azure-conv", "stands for your requests: nothing in a command says them");
            out.set("trace", "requests", 1000, "");
            taken.push(if self.states_count { "lengths of `azure-conv`" } else { "1,000 of `azure-conv`" });
        }
        if !self.has_arrivals {
            out.word("trace", "arrivals", "poisson", "");
        }
        if self.has_rate {
            out.set("trace", "rate_per_s", "1.0", "");
        }
        if self.has_rate && !self.states_rate {
            taken.push(if taken.is_empty() { "those of `--set` at one a second" } else { "at one a second" });
        }
        taken
    }

    /// Writes what the client asks for. Where the command line states arrivals with a rate and the client has none, one stands for it.
    fn write_client(&self, client: &Asked, out: &mut Document) -> Vec<&'static str> {
        for (key, value, remark) in &client.keys {
            out.set("trace", key, value, remark.clone());
        }
        for (key, value, remark) in &client.limits {
            out.set("slo", key, value, remark.clone());
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
    use crate::Machine;
    use crate::example::import_text;

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
            let scenario = import_text(text, &machine).scenario;
            for key in has {
                assert!(scenario.contains(&format!("\n{key} = ")), "{set}: {key} in {scenario}");
            }
            for key in has_not {
                assert!(!scenario.contains(&format!("\n{key} = ")), "{set}: {key} in {scenario}");
            }
        }
    }

    #[test]
    fn a_warning_names_what_is_taken_and_not_what_is_stated() {
        let text = "vllm serve meta-llama/Llama-3.1-8B-Instruct";
        for (set, taken) in [
            ("seed=1", "1,000 of `azure-conv` at one a second are taken"),
            ("trace.rate_per_s=5", "1,000 of `azure-conv` are taken"),
            ("trace.requests=50", "lengths of `azure-conv` at one a second are taken"),
            ("trace.lengths=\"sharegpt\"", "those of `--set` at one a second are taken"),
        ] {
            let machine = Machine::of_overrides(&["cluster.gpu=h200-sxm".to_owned(), set.to_owned()]);
            let found = import_text(text, &machine).findings;
            let said: Vec<&str> = found.iter().map(|one| one.what.as_str()).collect();
            assert_eq!(said, [format!("a command says nothing of requests: {taken}")], "{set}");
        }
        let both = ["cluster.gpu=h200-sxm", "trace.rate_per_s=5", "trace.lengths=\"sharegpt\""].map(str::to_owned);
        let found = import_text(text, &Machine::of_overrides(&both)).findings;
        assert!(found.is_empty(), "{found:?}");
    }
}
