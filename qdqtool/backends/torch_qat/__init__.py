"""Everything that touches torch: tracing, quantizers where placement wants them, fine-tuning, export."""
