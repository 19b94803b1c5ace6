use buttress_proof::harness::Case;
pub fn cases() -> Vec<Case> {
    Vec::new()
}
