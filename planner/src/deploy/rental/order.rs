//! An order of a question's lists that does not hang on the file: a search that finds two plans as good gives the one that it meets first.
//!
//! GPU types stand by price and name, models by name, request types by model, name and number, configurations by model, first GPU type, GPUs and name. What
//! is equal in all of these stays as it was written. Given plans stay too: nothing is sought among them.

use std::cmp::Ordering;

use super::{Configurations, Deployed, GivenPlan, Question};
use crate::deploy::inventory::Offer;
use crate::deploy::{Configuration, Demand};

/// Where items stood before, in their new order.
struct Order(Vec<usize>);

impl Order {
    fn of<T>(items: &[T], compare: impl Fn(&T, &T) -> Ordering) -> Self {
        let mut before: Vec<usize> = (0..items.len()).collect();
        before.sort_by(|&a, &b| compare(&items[a], &items[b]));
        Self(before)
    }

    fn laid<T: Clone>(&self, items: &[T]) -> Vec<T> {
        self.0.iter().map(|&before| items[before].clone()).collect()
    }

    /// Where an item stands that stood there before; the one model that nobody names stands where it stood.
    fn place(&self, before: usize) -> usize {
        self.0.iter().position(|&of| of == before).unwrap_or(before)
    }
}

/// Orders of what configurations count by place.
struct Orders {
    offers: Order,
    models: Order,
    demands: Order,
}

impl Question {
    /// The same question in an order that does not hang on the file.
    pub fn in_order(self) -> Self {
        let models = Order::of(&self.model_names, Ord::cmp);
        let demands = Order::of(&self.demands, |a, b| by_demand(&models, a, b));
        let orders = Orders { offers: Order::of(&self.inventory.offers, by_price), models, demands };
        let (configurations, configuration_order) = orders.configurations(&self.configurations);
        let mut inventory = self.inventory;
        inventory.offers = orders.offers.laid(&inventory.offers);
        // Where configurations are given, models are names alone.
        let models = if self.models.is_empty() { Vec::new() } else { orders.models.laid(&self.models) };
        let plan = |plan: GivenPlan| GivenPlan {
            replicas: configuration_order.laid(&plan.replicas),
            shares: plan
                .shares
                .map(|rows| configuration_order.laid(&rows).iter().map(|row| orders.demands.laid(row)).collect()),
            ..plan
        };
        Self {
            inventory,
            models,
            model_names: orders.models.laid(&self.model_names),
            demands: orders.demands(&self.demands),
            lengths: orders.demands.laid(&self.lengths),
            configurations,
            plans: self.plans.into_iter().map(plan).collect(),
            ..self
        }
    }
}

impl Orders {
    fn demands(&self, demands: &[Demand]) -> Vec<Demand> {
        let laid = self.demands.laid(demands);
        laid.into_iter().map(|demand| Demand { model: self.models.place(demand.model), ..demand }).collect()
    }

    fn configurations(&self, configurations: &Configurations) -> (Configurations, Order) {
        match configurations {
            Configurations::Given(all) => {
                let all: Vec<Configuration> = all.iter().map(|configuration| self.given(configuration)).collect();
                let order = Order::of(&all, by_gpus);
                (Configurations::Given(order.laid(&all)), order)
            }
            Configurations::Enumerated(all) => {
                let place = |of: &Deployed| Deployed {
                    offer: self.offers.place(of.offer),
                    model: self.models.place(of.model),
                    ..*of
                };
                let all: Vec<Deployed> = all.iter().map(place).collect();
                let order = Order::of(&all, |a, b| by_degrees(a).cmp(&by_degrees(b)));
                (Configurations::Enumerated(order.laid(&all)), order)
            }
        }
    }

    fn given(&self, configuration: &Configuration) -> Configuration {
        Configuration {
            name: configuration.name.clone(),
            model: self.models.place(configuration.model),
            n_gpus: self.offers.laid(&configuration.n_gpus),
            requests_per_s: self.demands.laid(&configuration.requests_per_s),
        }
    }
}

fn by_price(a: &Offer, b: &Offer) -> Ordering {
    let by_name = || (&a.name, &a.region_name).cmp(&(&b.name, &b.region_name));
    a.usd_per_hour.total_cmp(&b.usd_per_hour).then_with(by_name)
}

fn by_demand(models: &Order, a: &Demand, b: &Demand) -> Ordering {
    let by_name = (models.place(a.model), &a.name).cmp(&(models.place(b.model), &b.name));
    by_name.then_with(|| a.requests.total_cmp(&b.requests))
}

fn by_gpus(a: &Configuration, b: &Configuration) -> Ordering {
    let key = |of: &Configuration| (of.model, of.n_gpus.iter().position(|n| *n > 0), of.n_gpus.iter().sum::<u32>());
    key(a).cmp(&key(b)).then_with(|| (&a.n_gpus, &a.name).cmp(&(&b.n_gpus, &b.name)))
}

const fn by_degrees(of: &Deployed) -> (usize, usize, u32, u32) {
    (of.model, of.offer, of.parallel.tp, of.parallel.pp)
}

#[cfg(test)]
mod tests {
    use hw::{Bytes, Tokens};
    use serve::replica::Limits;

    use super::super::{Costs, Rates, ReplicaOptions};
    use super::*;
    use crate::deploy::inventory::Inventory;
    use crate::deploy::throughput::Lengths;

    fn replica() -> ReplicaOptions {
        ReplicaOptions {
            rates: Rates::Roofline,
            costs: Costs::Datasheet,
            tp: vec![1],
            pp: vec![1],
            limits: Limits::ROOMY,
            memory_ratio: 0.9,
            reserved: Bytes(0),
            host_us_per_step: 0.0,
            drafts: None,
        }
    }

    /// A question whose lists stand in the given orders, each a permutation of two.
    fn question([offers, types, configurations]: [[usize; 2]; 3]) -> Question {
        let offer = |at: usize| [Offer::priced("dear", 4.0, 2), Offer::priced("cheap", 1.0, 3)][at].clone();
        let demand =
            |at: usize| Demand { name: ["long", "short"][at].to_owned(), model: 0, requests: [10.0, 20.0][at] };
        let (n_gpus, rates) = ([[1, 0], [0, 2]], [[1.0, 2.0], [0.5, 0.7]]);
        let configuration = |c: usize| Configuration {
            name: ["one", "two"][c].to_owned(),
            model: 0,
            n_gpus: offers.map(|offer| n_gpus[c][offer]).to_vec(),
            requests_per_s: types.map(|w| rates[c][w]).to_vec(),
        };
        let plan = GivenPlan {
            name: "published".to_owned(),
            replicas: configurations.map(|c| [1, 3][c]).to_vec(),
            shares: Some(configurations.map(|c| types.map(|w| [[0.25, 1.0], [0.75, 0.0]][c][w]).to_vec()).to_vec()),
        };
        Question {
            inventory: Inventory::of(offers.map(offer).to_vec()),
            play: None,
            models: Vec::new(),
            model_names: Vec::new(),
            demands: types.map(demand).to_vec(),
            lengths: types.map(|w| Lengths { input: Tokens([900, 100][w]), output: Tokens(1) }).to_vec(),
            configurations: Configurations::Given(configurations.map(configuration).to_vec()),
            unheld: Vec::new(),
            replica: replica(),
            plans: vec![plan],
            gap: 0.0,
        }
    }

    #[test]
    fn no_order_of_lines_changes_a_question() {
        let both = [[0, 1], [1, 0]];
        let asked = format!("{:?}", question([both[0]; 3]).in_order());
        for offers in both {
            for types in both {
                for configurations in both {
                    let other = question([offers, types, configurations]).in_order();
                    assert_eq!(format!("{other:?}"), asked, "{offers:?} {types:?} {configurations:?}");
                }
            }
        }
        let first = question([[0, 1]; 3]).in_order();
        assert_eq!(first.inventory.offers[0].name, "cheap");
        let Configurations::Given(all) = &first.configurations else { panic!("given") };
        // The pair of the cheap type comes first, and keeps its plan.
        assert_eq!(
            (all[0].name.as_str(), all[0].n_gpus.as_slice(), first.plans[0].replicas[0]),
            ("two", &[2, 0][..], 3)
        );
    }
}
