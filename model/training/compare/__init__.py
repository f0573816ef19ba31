"""`python train.py compare`: kernels trained side by side, and what that says of them.

command.py   trains each in turn, many times over, and writes all that was measured as a record
figures.py   the study's figures from a record: speed-ups, bandwidths, Amdahl's bound
tables.py    the figures as text
charts.py    the figures as pictures
report.py    all of it as one HTML file
"""
