"""What all tests need."""

import signal

# A shell that starts tests in the background has Ctrl-C ignored, in all that they start too: then no test of it holds.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
