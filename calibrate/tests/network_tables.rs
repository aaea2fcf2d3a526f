//! Fits the measured messages again where they are there: the shipped links are what the tables give, and the error on sizes
//! that the fit did not see stays small.

use std::path::Path;

use calibrate::network::links;
use engine::cost::profile::Profile;

#[test]
fn shipped_links_are_the_fit_of_the_tables_and_meet_unseen_sizes() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/vidur/profiling/network");
    if !dir.is_dir() {
        eprintln!("skipped: shared data absent ({})", dir.display());
        return;
    }
    for (folder, profile, port) in [("a100_dgx", "a100-sxm", None), ("h100_dgx", "h100-sxm", Some(50.0))] {
        let fitted = links(&dir.join(folder), port).expect("readable tables");
        let text = calibrate::profiles::embedded(profile).expect("shipped");
        assert_eq!(Profile::parse(text).expect("valid").links, fitted, "{profile}");
        for link in fitted {
            println!("{profile}: {link:?}");
            assert!(link.residuals.median_error < 0.10, "{profile}: {:?}", link.residuals);
        }
    }
}
