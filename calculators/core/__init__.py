"""What a calculator is: declared inputs, units, results, refusals and the index.  Imports nothing else of ours."""
