//! What no table of kernels holds of a training step: at most one fitted number per type of GPU and one per type of host, with the rows that they were
//! fitted on.
//!
//! They are of the machine and its software, never of a row or a model.

use std::borrow::Cow;

use engine::CostModel;
use engine::cost::profile::Profile;
use engine::cost::profiled::Profiled;
use engine::cost::sustained::Sustained;
use hw::{Cluster, Reached, Seconds};
pub use train::megatron_core::Graphs;
use train::problem::{Captured, Launches};

/// Constants of a type of GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Constants {
    /// Cards that they are of, by their names in the catalogue; none for every other card.
    pub cards: &'static [&'static str],
    /// Share of the datasheet peak that products of 16 bits hold in a run of hours, because the power limit lowers the clock. Cards of a generation do as many
    /// operations per joule as the one that was measured.
    pub sustained: f64,
    /// The same of narrower products: as many operations per joule as the measured card of the generation does at 8,192 cubed.
    pub sustained_narrow: f64,
    /// Share of a link inside a node that exchanges reach which no table has: messages, and groups over a bus.
    pub link_share: f64,
    /// What such cards stand in.
    pub host: Host,
    /// Rows that clock, speed and links were fitted on.
    pub fitted_on: &'static str,
}

/// What launches the kernels of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    /// One number for all cards that stand in one.
    X86,
    /// Grace, of GB200 and GB300.
    Grace,
}

impl Host {
    /// Time of a launch, Python and autograd with it. Microseconds.
    pub const fn launch_us(self) -> f64 {
        match self {
            Self::X86 => 27.0,
            Self::Grace => 40.0,
        }
    }

    /// Rows that it was fitted on.
    const fn fitted_on(self) -> &'static str {
        match self {
            Self::X86 => "Bridge, B200 rows 227, 258 and 259, B300 rows 196 and 229, H100 row 288",
            Self::Grace => "Bridge, GB200 rows 271 to 274",
        }
    }
}

/// Gathers among eight B200 reach 0.67 of 900 GB/s (MooreThreads/SimuMax @ 4dcaae513ba7, b200_bf16_ceperm.json).
const B200_LINKS: f64 = 0.67;

/// Every type; the last one is of every card that has no other.
pub static CONSTANTS: [Constants; 9] = [
    Constants {
        cards: &["b200"],
        sustained: 0.46,
        sustained_narrow: 0.51,
        link_share: B200_LINKS,
        host: Host::X86,
        fitted_on: "SimuMax B200: the clock on rows 25, 29 and 33",
    },
    Constants {
        cards: &["b300"],
        sustained: 0.51,
        sustained_narrow: 0.56,
        link_share: B200_LINKS,
        host: Host::X86,
        fitted_on: "nothing; operations per joule are the B200's",
    },
    Constants {
        cards: &["gb200"],
        sustained: 0.50,
        sustained_narrow: 0.55,
        link_share: B200_LINKS,
        host: Host::Grace,
        fitted_on: "nothing; operations per joule are the B200's",
    },
    Constants {
        cards: &["gb300"],
        sustained: 0.58,
        sustained_narrow: 0.64,
        link_share: B200_LINKS,
        host: Host::Grace,
        fitted_on: "nothing; operations per joule are the B200's",
    },
    Constants {
        cards: &["a100-pcie-80g"],
        sustained: 1.0,
        sustained_narrow: 1.0,
        // 0.69 of 30 GB/s in groups of two and four (MooreThreads/SimuMax @ 4dcaae513ba7, configs/system/a100_pcie.json).
        link_share: 0.647,
        host: Host::X86,
        fitted_on: "nothing",
    },
    Constants {
        // All have one die under the same power; an A800 has fewer links.
        cards: &["a100-sxm-80g", "a100-sxm-40g", "a800"],
        sustained: 0.72,
        sustained_narrow: 1.0,
        // NCCL 2.27 on eight A100, 512 MiB: 205 GB/s of 300 in all-gather, 213 in reduce-scatter (aiconfigurator, `nccl_perf`).
        link_share: 0.7,
        host: Host::X86,
        fitted_on: "gpt-175b-768 and gpt-22b-full of docs/megatron.md",
    },
    Constants {
        // H200 and H800 are the same die under the same power; an H800 has fewer links.
        cards: &["h100-sxm", "h200-sxm", "h800"],
        sustained: 1.0,
        sustained_narrow: 0.67,
        // NCCL 2.29 on eight H100, 512 MiB: 335 GB/s of 450 in all-gather, 336 in reduce-scatter (aiconfigurator, `nccl_perf`).
        link_share: 0.75,
        host: Host::X86,
        fitted_on: "nothing",
    },
    Constants {
        cards: &["h100-sxm-96g"],
        sustained: 0.49,
        sustained_narrow: 0.48,
        link_share: 0.75,
        host: Host::X86,
        fitted_on: "torchtitan: the clock on rows 5 and 19",
    },
    Constants {
        cards: &[],
        sustained: 1.0,
        sustained_narrow: 1.0,
        link_share: 0.75,
        host: Host::X86,
        fitted_on: "nothing",
    },
];

/// Launches per layer and pass that the device waits for where nothing replays them, though the host is ahead: the first ones behind an exchange.
/// Fitted on SimuMax B200, rows 2 to 4 and 18 to 20, while exchanges there reached half of a link whatever their size.
const EXPOSED_LAUNCHES: f64 = 7.4;

impl std::fmt::Display for Constants {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { sustained, sustained_narrow, link_share, host, fitted_on, .. } = self;
        let (launch_us, host_rows) = (host.launch_us(), host.fitted_on());
        write!(
            to,
            "products in 16 bits hold {sustained} of the peak, narrower ones {sustained_narrow}, links reach {link_share}: fitted on \
             {fitted_on}; a launch takes {launch_us} us: fitted on {host_rows}"
        )
    }
}

impl Constants {
    /// Time of a launch.
    pub fn launch(&self) -> Seconds {
        Seconds::new(self.host.launch_us() * 1e-6)
    }

    /// Time per layer and pass in which the device waits for the host.
    pub fn host_per_layer(&self) -> Seconds {
        self.launch() * EXPOSED_LAUNCHES
    }

    /// Time per layer that the host takes of the device, and its lane of launches, with what graphs replay. A graph of a part of every layer runs
    /// its first kernels while the host launches the rest.
    pub fn host(&self, graphs: Graphs) -> (Seconds, Launches) {
        let launches = |captured| Launches { each: self.launch(), captured };
        match graphs {
            Graphs::Off => (self.host_per_layer(), launches(Captured::default())),
            Graphs::Modules(captured) => (Seconds::ZERO, launches(captured)),
            Graphs::Step => (Seconds::ZERO, Launches::UNSEEN),
        }
    }

    /// The same where products of any width hold a stated share of the peak.
    #[must_use]
    pub const fn holding(self, ratio: f64) -> Self {
        let fitted_on = "what the scenario states of products; links are the card's";
        Self { sustained: ratio, sustained_narrow: ratio, fitted_on, ..self }
    }

    /// Costs of training on a machine of such cards by a profile of them, or one that is lent to them.
    pub fn costs(&self, cluster: &Cluster, profile: &Profile) -> Box<dyn CostModel> {
        let profiled = Profiled::new(&beside_b200(profile), cluster).with_link_shares([self.link_share, PORT_SHARE]);
        Box::new(Sustained::by_width(profiled, &cluster.gpu, [self.sustained, self.sustained_narrow]))
    }

    /// Constants of a card of the catalogue.
    ///
    /// # Panics
    /// Never: the last row is of every card.
    pub fn of(card: &str) -> Self {
        let is_its = |constants: &&Self| constants.cards.is_empty() || constants.cards.contains(&card);
        CONSTANTS.iter().find(is_its).expect("the last one is of every card").reaching(hw::catalog::reached(card))
    }

    /// The same with shares of the datasheet that are published of a card.
    fn reaching(self, reached: Reached) -> Self {
        if reached == Reached::default() {
            return self;
        }
        Self {
            sustained: reached.products.unwrap_or(self.sustained),
            sustained_narrow: reached.narrow.unwrap_or(self.sustained_narrow),
            link_share: reached.links.unwrap_or(self.link_share),
            fitted_on: "nothing; what is published of the card's products and all-reduces",
            ..self
        }
    }
}

/// Share of a port between nodes that large exchanges reach.
pub(super) const PORT_SHARE: f64 = 0.75;

/// What the other cards of a generation take for a kernel over what B200's tables and both datasheets say of it: products in 8 bits of 2,048 rows and 1,024 columns and
/// more by cuBLASLt. Geometric means over the shapes of tables of the same versions as B200's (ai-dynamo/aiconfigurator @ 095f58a51c4c, `gemm_perf` of TensorRT-LLM 1.3.0rc20).
static BESIDE_B200: [(&str, f64); 3] = [("b300", 0.953), ("gb200", 1.085), ("gb300", 0.976)];

/// A profile with what tables say of its card beside B200, where B200 lent it.
fn beside_b200(profile: &Profile) -> Cow<'_, Profile> {
    let known = BESIDE_B200.iter().find(|(card, _)| profile.lent_by.as_deref() == Some("b200") && *card == profile.gpu);
    let Some((_, factor)) = known else { return Cow::Borrowed(profile) };
    let mut profile = profile.clone();
    if let Some(operator) = profile.operators.get_mut("gemm-fp8") {
        operator.surface.values.iter_mut().for_each(|value| *value += factor.ln());
    }
    Cow::Owned(profile)
}

/// Costs of training on a machine by a profile of its card, or one that is lent to it.
pub fn costs(cluster: &Cluster, profile: &Profile) -> Box<dyn CostModel> {
    Constants::of(&cluster.gpu.name).costs(cluster, profile)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_beside_b200_take_what_their_own_tables_say() {
        // In B300's own table products take 0.953 times as long as B200's say; a card's own profile and one that another card lent stay.
        let text = include_str!("../../../profiles/b200-trtllm.toml");
        let own = Profile::parse(text).expect("shipped");
        let gpu = |name: &str| hw::catalog::gpu(name).expect("listed");
        let time = |profile: &Profile| {
            let op = engine::task::Op::Gemm { m: 16_384, n: 8192, k: 8192, format: hw::Format::Fp8 };
            Profiled::new(profile, &hw::catalog::cluster(&gpu("b300"), 1, 8)).estimate(&op).time.get()
        };
        let lent = own.lent_to(&gpu("b300"));
        let ratio = time(&beside_b200(&lent)) / time(&lent);
        assert!((ratio - 0.953).abs() < 1e-3, "{ratio}");
        assert_eq!(*beside_b200(&own), own);
        let lent = Profile { gpu: "b300".to_owned(), lent_by: Some("h100-sxm".to_owned()), ..own };
        assert_eq!(*beside_b200(&lent), lent);
    }

    #[test]
    fn every_card_has_one_row_and_every_row_says_what_it_was_fitted_on() {
        for name in hw::catalog::gpu_names() {
            let rows = CONSTANTS.iter().filter(|constants| constants.cards.contains(&name)).count();
            assert!(rows <= 1, "{name}");
        }
        for constants in &CONSTANTS {
            assert!(!constants.fitted_on.is_empty());
            assert!(constants.cards.iter().all(|card| hw::catalog::gpu(card).is_some()));
        }
    }

    /// What a clock follows from: peaks and the power limit. The share of a link that exchanges reach does not hang on how many links there are.
    fn rates(gpu: &hw::Gpu) -> [Option<f64>; 5] {
        let [fp32, fp8] = [gpu.peak_fp32, gpu.peak_fp8].map(|peak| peak.map(hw::FlopsPerSecond::get));
        [Some(gpu.peak_bf16.get()), fp32, fp8, gpu.power_watts, Some(if gpu.has_own_link() { 1.0 } else { 0.0 })]
    }

    #[test]
    fn cards_that_differ_in_memory_and_number_of_links_alone_have_the_same_constants() {
        let gpus: Vec<hw::Gpu> = hw::catalog::gpu_names().into_iter().filter_map(hw::catalog::gpu).collect();
        let mut alike = Vec::new();
        for (index, one) in gpus.iter().enumerate() {
            for other in gpus[..index].iter().filter(|other| rates(other) == rates(one)) {
                assert_eq!(Constants::of(&one.name), Constants::of(&other.name), "{} and {}", one.name, other.name);
                alike.push([one.name.as_str(), other.name.as_str()]);
            }
        }
        for pair in [["a100-sxm-40g", "a100-sxm-80g"], ["a800", "a100-sxm-80g"], ["h800", "h100-sxm"]] {
            assert!(alike.iter().any(|[one, other]| pair == [*one, *other] || pair == [*other, *one]), "{pair:?}");
        }
        let of_every_card = CONSTANTS.last().expect("listed");
        assert_ne!(Constants::of("a100-sxm-40g"), *of_every_card);
    }

    #[test]
    fn a_card_without_measured_kernels_holds_what_is_published_of_it() {
        let [mi300x, mi325x, mi355x] = ["mi300x", "mi325x", "mi355x"].map(Constants::of);
        // The best shapes of MI300X reach 708 of 1,307 and 1,273 of 2,615 TFLOP/s, of which layers reach as much as on MI325X; 315.7 of 448 GB/s.
        for (found, expected) in [
            (mi325x.sustained, 616.0 / 1307.4),
            (mi325x.sustained_narrow, 1143.0 / 2614.9),
            (mi300x.sustained, 708.0 / 1307.4 * 616.0 / 831.0),
            (mi300x.sustained_narrow, 1273.0 / 2614.9 * 1143.0 / 1408.0),
            (mi300x.link_share, 315.7 / 448.0),
            (mi355x.sustained_narrow, 3130.0 / 5033.2),
        ] {
            assert!((found / expected - 1.0).abs() < 0.015, "{found} for {expected}");
        }
        assert_eq!((mi355x.sustained, mi355x.link_share), (1.0, 0.75), "nothing is published of these");
    }
}
