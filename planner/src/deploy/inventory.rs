//! What may be rented or is there: GPU types with counts, prices with their quote, regions, and the links between machines.
//!
//! Every planner of deployments takes an `Inventory`. A row is GPUs of one type in one region, in machines of so many; planners that place on
//! machines ask for it machine by machine (`by_machine`). Units: dollars per GPU and hour, bytes per second, seconds.

use hw::Gpu;
use serve::deployment::Machine;

use super::RentalError;

/// GPUs of one type.
#[derive(Clone, Debug, PartialEq)]
pub struct Offer {
    /// Name, for messages.
    pub name: String,
    /// Name of the GPU type: several offers may have one, at other prices or in other regions.
    pub kind: String,
    /// The type; `None` where only its name is known, and rates are given.
    pub gpu: Option<Gpu>,
    /// GPUs that are there or can be had.
    pub n_available: u32,
    /// GPUs of one machine: inside it links are the type's own.
    pub n_gpus_per_machine: u32,
    /// Dollars per GPU and hour; 0 for what is owned.
    pub usd_per_hour: f64,
    /// Provider and date of the price, in words.
    pub quote: String,
    /// Region: links within one are others than between two.
    pub region: u32,
    /// Its name, where it has one.
    pub region_name: Option<String>,
    /// How its replicas are lost, where the provider takes them back.
    pub losses: Option<Losses>,
}

/// Random losses of what is rented without a promise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Losses {
    /// Mean seconds until a replica is lost.
    pub mtbf_s: f64,
    /// Mean seconds until it is back.
    pub mttr_s: f64,
}

impl Offer {
    /// GPUs at a price, of which nothing else is known.
    pub fn priced(name: impl Into<String>, usd_per_hour: f64, n_available: u32) -> Self {
        let name = name.into();
        Self {
            kind: name.clone(),
            name,
            gpu: None,
            n_available,
            n_gpus_per_machine: n_available.max(1),
            usd_per_hour,
            quote: String::new(),
            region: 0,
            region_name: None,
            losses: None,
        }
    }

    /// A machine on the terms of this offer: price, region, and whether it is taken back.
    pub fn terms(&self) -> Machine {
        Machine {
            usd_per_gpu_hour: Some(self.usd_per_hour).filter(|usd| *usd > 0.0),
            region: self.region_name.clone(),
            is_spot: self.losses.is_some(),
            ..Machine::default()
        }
    }

    /// One machine that is there.
    pub fn machine(gpu: Gpu, n_gpus: u32) -> Self {
        Self { gpu: Some(gpu.clone()), ..Self::priced(gpu.name, 0.0, n_gpus) }
    }

    /// Memory of so many of its GPUs; 0 where only the name of the type is known.
    pub fn memory_bytes(&self, n_gpus: u32) -> u64 {
        self.gpu.as_ref().map_or(0, |gpu| gpu.memory.0 * u64::from(n_gpus))
    }

    /// Machines of the row.
    pub fn n_machines(&self) -> u32 {
        self.n_available.div_ceil(self.n_gpus_per_machine.max(1))
    }

    /// The same row cut into machines, the last one with what is left.
    fn machines(&self) -> impl Iterator<Item = Self> {
        let most = self.n_gpus_per_machine.max(1);
        (0..self.n_machines())
            .map(move |at| Self { n_available: most.min(self.n_available - at * most), ..self.clone() })
    }
}

/// A link between two machines.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Bandwidth.
    pub bytes_per_s: f64,
    /// Latency, seconds.
    pub latency_s: f64,
}

/// Links between machines.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Network {
    /// Between machines of one region.
    pub within: Link,
    /// Between machines of two regions.
    pub between: Link,
    /// Bytes per second of a machine's network card in either direction, over all its links.
    pub card_bytes_per_s: f64,
    /// Between a machine and the coordinator of a pool, where it is not that of their regions.
    pub coordinator: Option<Link>,
}

impl Network {
    /// The same link between any two machines, which the card does not limit.
    pub const fn uniform(link: Link) -> Self {
        Self { within: link, between: link, card_bytes_per_s: f64::INFINITY, coordinator: None }
    }
}

/// GPUs and links.
#[derive(Clone, Debug, PartialEq)]
pub struct Inventory {
    /// GPU types, a row for each price and region.
    pub offers: Vec<Offer>,
    /// Links between their machines.
    pub network: Network,
}

impl Inventory {
    /// GPUs whose machines exchange nothing.
    pub const fn of(offers: Vec<Offer>) -> Self {
        Self { offers, network: Network::uniform(Link { bytes_per_s: f64::INFINITY, latency_s: 0.0 }) }
    }

    /// A row for every machine, in order.
    pub fn by_machine(&self) -> Self {
        Self { offers: self.offers.iter().flat_map(Offer::machines).collect(), network: self.network }
    }

    /// The link between machines of two rows.
    pub fn link(&self, a: usize, b: usize) -> Link {
        if self.offers[a].region == self.offers[b].region { self.network.within } else { self.network.between }
    }

    /// Checks that something is offered, and everything at a price.
    ///
    /// # Errors
    /// Names the first row without one.
    pub fn check_prices(&self) -> Result<(), RentalError> {
        if self.offers.is_empty() {
            return Err(RentalError::Input("no GPU type is offered".to_owned()));
        }
        let is_priced = |offer: &&Offer| offer.usd_per_hour.is_finite() && offer.usd_per_hour > 0.0;
        match self.offers.iter().find(|offer| !is_priced(offer)) {
            Some(Offer { name, usd_per_hour, .. }) => {
                Err(RentalError::Input(format!("price of `{name}` must be above 0 $/h, found {usd_per_hour}")))
            }
            None => Ok(()),
        }
    }

    /// Checks that there are GPUs with figures, and links with a bandwidth.
    ///
    /// # Errors
    /// Names the first row or link without.
    pub fn check_machines(&self) -> Result<(), RentalError> {
        let input = |message: String| Err(RentalError::Input(message));
        if self.offers.iter().all(|offer| offer.n_available == 0) {
            return input("the inventory has no GPU".to_owned());
        }
        if let Some(offer) = self.offers.iter().find(|offer| !offer.gpu.as_ref().is_some_and(has_rates)) {
            return input(format!("GPU of `{}` needs a peak and bandwidths above 0", offer.name));
        }
        for Link { bytes_per_s, latency_s } in [self.network.within, self.network.between] {
            if bytes_per_s.is_nan() || bytes_per_s <= 0.0 {
                return input(format!("a link must be above 0 bytes/s, found {bytes_per_s}"));
            }
            if !(latency_s.is_finite() && latency_s >= 0.0) {
                return input(format!("start-up of a message must not be below 0 s, found {latency_s}"));
            }
        }
        Ok(())
    }
}

fn has_rates(gpu: &Gpu) -> bool {
    let rates = [gpu.peak_bf16.get(), gpu.memory_bandwidth.get(), gpu.intra_node_bandwidth.get()];
    rates.into_iter().all(|rate| rate.is_finite() && rate > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_cut_into_machines_and_links_go_by_region() {
        let near = Offer { n_gpus_per_machine: 4, ..Offer::priced("a", 1.0, 6) };
        let far = Offer { region: 1, n_gpus_per_machine: 8, ..Offer::priced("b", 1.0, 8) };
        let link = |gb_per_s: f64| Link { bytes_per_s: gb_per_s * 1e9, latency_s: 1e-3 };
        let network = Network { within: link(10.0), between: link(1.0), card_bytes_per_s: 1e9, coordinator: None };
        let machines = Inventory { offers: vec![near, far], network }.by_machine();
        let sizes: Vec<(u32, u32)> = machines.offers.iter().map(|of| (of.n_available, of.region)).collect();
        assert_eq!(sizes, [(4, 0), (2, 0), (8, 1)]);
        assert_eq!((machines.link(0, 1), machines.link(1, 2)), (link(10.0), link(1.0)));
        assert!(machines.check_machines().is_err_and(|why| why.to_string().starts_with("GPU of `a` needs")));
    }
}
