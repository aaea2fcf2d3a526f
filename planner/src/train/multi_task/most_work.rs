//! Tasks in an order of their own: those with the most work first, equal ones by name. Plans take equal parts in the order of tasks, and a file may list its tasks
//! in any.

use train::multi_task::{Call, MultiTask};

/// The same with tasks by their work, each with its calls.
pub fn most_work_first(training: &MultiTask) -> MultiTask {
    let mut order: Vec<usize> = (0..training.tasks.len()).collect();
    order.sort_by_key(|&task| (std::cmp::Reverse(work(training, task)), training.tasks[task].name.clone()));
    let (mut calls, mut place_of) = (Vec::with_capacity(training.calls.len()), vec![0; training.calls.len()]);
    for (task, &written) in order.iter().enumerate() {
        for (index, call) in training.calls.iter().enumerate().filter(|(_, call)| call.task == written) {
            place_of[index] = calls.len();
            calls.push(Call { task, ..call.clone() });
        }
    }
    calls.iter_mut().flat_map(|call| &mut call.after).for_each(|before| *before = place_of[*before]);
    let tasks = order.iter().map(|&task| training.tasks[task].clone()).collect();
    MultiTask { tasks, calls, ..training.clone() }
}

/// Tokens that a task sends through parameters in an iteration: multiplications are in proportion to it.
fn work(training: &MultiTask, task: usize) -> u128 {
    let of_call = |call: &Call| {
        let operator = &training.operators[call.operator];
        let parameters = u128::from(operator.parameters) * u128::from(operator.n_layers);
        u128::from(training.tasks[task].batch) * u128::from(call.tokens) * parameters
    };
    training.calls.iter().filter(|call| call.task == task).map(of_call).sum()
}
